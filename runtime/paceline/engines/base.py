"""The engine port: what Paceline asks of one replica."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline.workflow.model import Sampling


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One dispatch.

    `prompt_json` is the prompt's token ids as the text of a JSON array: it is kept per transcript and
    extended, so that a long context is never serialised again.
    """

    request_id: str
    prompt_json: bytes
    prompt_tokens: int
    max_tokens: int
    sampling: Sampling
    stop_token_ids: tuple[int, ...]
    cache_salt: str
    session_id: str
    candidates: int = 0
    """How many of the likeliest first tokens to tell, with their log probabilities."""
    structured_outputs: Mapping[str, Any] | None = None
    """What the answer has to look like, as vLLM's `/v1/completions` takes it; only for a server that has it."""


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Newly generated ids; speculation puts several into one chunk."""

    token_ids: list[int]


@dataclass(frozen=True, slots=True)
class GenerationEnd:
    """The engine's last word. None: the server does not report it."""

    finish_reason: str
    """`stop`, `length` or `abort`."""
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    cache_writes: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    draft_steps: int | None = None
    checks: tuple[tuple[int, int], ...] | None = None
    """(drafted, accepted) of each verification, from a server that is told to report them one by one."""
    candidates: Mapping[int, float] = field(default_factory=dict)
    """Log probabilities (nats) of the likeliest first tokens, by id; empty unless asked for."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a probe found out about a server."""

    version: str
    model: str
    max_model_len: int
    block_size: int | None
    reports_cached_tokens: bool
    reports_speculation: bool
    emulated: bool = False
    structured_outputs: bool = False
    """Whether its completions have the field `structured_outputs`."""


class Engine(Protocol):
    """One replica. Errors, all from `paceline.errors`: `EngineLost` (connection or stream broke, stalled, or was
    never there), `EngineUnavailable` (it takes no requests now), `EngineRefused` (it never takes this one)."""

    async def probe(self) -> EngineInfo:
        """Find out what the server is, and that it generates: costs it a few tokens. To be called before
        `generate`, and again when another server may have taken its place.

        Raises `EngineUnavailable` while it does not answer, `EngineRefused` if it is of no use.
        """
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk | GenerationEnd, None]:
        """Stream the ids of one request, then one `GenerationEnd`.

        Closing the generator (`contextlib.aclosing`) or cancelling its reader aborts the request; nothing more
        is then known about it than the ids that came. Of a stream that raises, too.
        """
        ...

    async def healthy(self) -> bool:
        """Whether the server answers its health check within 2 s."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
