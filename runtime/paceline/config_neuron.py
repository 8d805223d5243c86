"""The settings of an engine on Neuron: what vLLM's plugin compiles, and for which cores."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from paceline.config_types import Items, Section


def core_list(text: str) -> tuple[int, ...]:
    """The cores of a text such as `0-7` or `0,2,4-5`, in its order. Raises `ValueError` for any other text."""
    found: list[int] = []
    for part in text.split(","):
        if not (match := re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part.strip())):
            raise ValueError(f"must be cores like 0-7 or 0,2,4-5, not {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        found += range(first, last + 1)
        if last < first:
            raise ValueError(f"{part.strip()} goes backwards; write {last}-{first}")
    if len(set(found)) < len(found):
        raise ValueError(f"{text!r} names a core twice; name each once")
    return tuple(found)


def _cores(text: str) -> str:
    if text:
        core_list(text)
    return text


def _version(text: str) -> str:
    if not re.match(r"\d+\.\d+", text):
        raise ValueError(f"must be a version such as 0.29.0.1.2.0, not {text!r}; `pip show vllm-neuron` prints it")
    return text


Buckets = Items[Annotated[int, Field(ge=1)]]


class Neuron(Section):
    """What vLLM's Neuron plugin needs to know before it compiles. For engines with `platform = "neuron"`, or
    with "emulated": the emulator then follows the plugin's rules."""

    plugin: Annotated[str, AfterValidator(_version)]
    """Version of the plugin vllm-neuron, such as 0.29.0.1.2.0; the first two numbers are vLLM's."""
    tensor_parallel_size: Annotated[int, Field(ge=1)]
    """Logical cores that the model is split over."""
    cores: Annotated[str, AfterValidator(_cores)] = ""
    """Logical cores of this engine, such as `8-15`. Empty: as many as needed, from 0."""
    logical_nc_config: Annotated[int, Field(ge=1, le=2)] = 2
    """Physical cores that are joined to a logical one."""
    prefix_caching: bool = True
    """Reuse what the KV cache holds. Off only for `dflash`."""
    segment_size: Annotated[int, Field(ge=1)] = 2048
    """Tokens of a prefill segment (vLLM's max_num_batched_tokens); every prefill takes whole ones."""
    num_batched_tokens_buckets: Buckets = Field(default_factory=list)
    """Prompt sizes to compile, in tokens. Empty: `segment_size`; others only with prompts of one segment and
    prefix caching off."""
    num_seqs_buckets: Buckets = Field(default_factory=list)
    """Batch sizes of decoding to compile. Empty: `max_concurrent_steps`."""
    decode_context_length_buckets: Buckets = Field(default_factory=list)
    """Context lengths of decoding to compile beside `max_model_len`, in tokens."""
    sampling: Literal["greedy", "device", "cpu"] = "greedy"
    """Where tokens are chosen: on the device, always the likeliest; on the device as each request says; or on
    the CPU."""
    num_gpu_blocks_override: Annotated[int, Field(ge=1)] | None = None
    """Blocks of the KV cache. Empty: the plugin's own choice."""
    compile_cache: Path | None = None
    """Folder for compiled graphs, one folder below it for each set of settings that compiles anew. Empty: in
    Paceline's cache folder."""
    remote_cache: Path | None = None
    """Folder on a file system that several machines share, from which compiled graphs are fetched."""
    compile_workers: Annotated[int, Field(ge=1)] | None = None
    """Compilers that run at once. Empty: the plugin's own choice."""
    compile_timeout_seconds: Annotated[int, Field(ge=1)] | None = None
    """How long one graph may compile, in seconds. Empty: the plugin's own choice."""

    @property
    def core_ids(self) -> tuple[int, ...]:
        """The cores, with the default filled in."""
        return core_list(self.cores) if self.cores else tuple(range(self.tensor_parallel_size))

    def segmented(self, max_model_len: int | None) -> bool:
        """Whether prompts are computed in segments: with prefix caching, or where one holds no whole prompt."""
        return self.prefix_caching or max_model_len is None or self.segment_size < max_model_len
