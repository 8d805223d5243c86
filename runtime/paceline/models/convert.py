"""Turns a GGUF file into a folder that vLLM loads. Run by an engine venv's Python: `convert.py GGUF_FILE FOLDER`.

It imports nothing of Paceline, which that venv does not have. Weights are dequantised to bfloat16; tokenizer and
chat template stay as the file carries them.
"""

import sys
from pathlib import Path


def main(source: Path, target: Path) -> None:
    """Convert `source` into the new folder `target`."""
    # Both are in the engine venv only, where this file runs.
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig  # noqa: PLC0415

    folder, file = str(source.parent), source.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    dequantise = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=file, dtype=torch.bfloat16, quantization_config=dequantise
    )
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
