"""What a server says about itself, read from its documents."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from paceline.errors import EngineRefused

_T = TypeVar("_T")
_BLOCK_SIZE = re.compile(r'^vllm:cache_config_info\{[^}]*\bblock_size="(\d+)"', re.MULTILINE)
_VERSION = re.compile(r"(\d+)\.(\d+)")
_SESSION_SINCE = (0, 29)
SESSION, STRUCTURED = "session_id", "structured_outputs"
_EMULATOR = "paceline-emulator"
"""`owned_by` of the emulator's model: no model runs."""
_PROBE_ID = 16
"""An ordinary token id in every vocabulary."""


class _Card(msgspec.Struct):
    id: str
    owned_by: str = ""
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Card]


class _Schema(msgspec.Struct):
    properties: dict[str, msgspec.Raw] = {}


class _Components(msgspec.Struct):
    schemas: dict[str, _Schema] = {}


class _OpenApi(msgspec.Struct):
    components: _Components


class _Version(msgspec.Struct):
    version: str


@dataclass(frozen=True, slots=True)
class Model:
    """The model that a replica serves."""

    name: str
    max_model_len: int
    emulated: bool


def read_version(body: bytes) -> str:
    """Return the version from `GET /version`. Raises `EngineRefused`."""
    return _read(body, _Version, "/version").version


def read_model(body: bytes, served_model_name: str) -> Model:
    """Return the model named so in `GET /v1/models`, or the only one if the name is empty.

    Raises `EngineRefused` if there is none, or several and no name.
    """
    cards = _read(body, _Models, "/v1/models").data
    names = ", ".join(card.id for card in cards)
    found = [card for card in cards if served_model_name in ("", card.id)]
    if len(found) != 1:
        raise EngineRefused(
            f"The engine serves {names or 'no model'}; set served_model_name of the engine to one of these.",
            served_model_name=served_model_name,
        )
    card = found[0]
    if card.max_model_len is None:
        raise EngineRefused(f"The engine's /v1/models has no max_model_len for {card.id}; is it a vLLM server?")
    return Model(name=card.id, max_model_len=card.max_model_len, emulated=card.owned_by == _EMULATOR)


def optional_fields(openapi: bytes | None, version: str) -> frozenset[str]:
    """Which of `session_id` and `structured_outputs` completions have: by the OpenAPI document, or by the version
    if that is switched off.

    Raises `EngineRefused` if completions cannot return token ids.
    """
    if openapi is None:
        match = _VERSION.match(version)
        recent = match is not None and (int(match[1]), int(match[2])) >= _SESSION_SINCE
        return frozenset({SESSION, STRUCTURED} if recent else {STRUCTURED})
    schema = _read(openapi, _OpenApi, "/openapi.json").components.schemas.get("CompletionRequest", _Schema())
    if "return_token_ids" not in schema.properties:
        raise EngineRefused(
            f"The engine (version {version}) cannot return token ids; Paceline needs vLLM 0.24 or newer."
        )
    return frozenset({SESSION, STRUCTURED} & schema.properties.keys())


def read_block_size(metrics: str) -> int | None:
    """Return the KV block in tokens from `GET /metrics`, None where the server does not say."""
    match = _BLOCK_SIZE.search(metrics)
    return int(match[1]) if match else None


def probe_prompt(block_size: int | None, max_model_len: int) -> list[int]:
    """Return a prompt that fills one KV block and one token more, so that its repetition can be cached."""
    return [_PROBE_ID] * min((block_size or 128) + 1, max_model_len - 1)


def _read(body: bytes, shape: type[_T], path: str) -> _T:
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.DecodeError as error:
        raise EngineRefused(f"The engine's {path} is not vLLM's; check the engine's url.", path=path) from error
