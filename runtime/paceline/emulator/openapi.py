"""As much of `/openapi.json` as a probe of features reads."""

from __future__ import annotations

from typing import Any

import msgspec

from paceline.emulator.protocol import CompletionRequest
from paceline.emulator.settings import Features


def openapi_document(features: Features) -> dict[str, Any]:
    """Paths of this version and the fields of its completion request that are emulated."""
    paths = {
        "/health": "get",
        "/metrics": "get",
        "/v1/completions": "post",
        "/v1/models": "get",
        "/version": "get",
    }
    if features.generate_route:
        paths["/inference/v1/generate"] = "post"
    names = {field.encode_name for field in msgspec.structs.fields(CompletionRequest)}
    if not features.session_id:
        names.discard("session_id")
    properties = {name: {"title": name} for name in sorted(names)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Emulated vLLM: no model runs", "version": features.version},
        "paths": {path: {method: {}} for path, method in paths.items()},
        "components": {"schemas": {"CompletionRequest": {"type": "object", "properties": properties}}},
    }
