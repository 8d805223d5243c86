"""How both clients connect: options, credentials and metadata."""

from __future__ import annotations

import grpc

DEFAULT_TARGET = "127.0.0.1:7450"
_MAX_MESSAGE_BYTES = 64 << 20

OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.enable_retries", 0),
]
"""Retries are our own: grpc would send a step again without skipping what was delivered."""


def credentials(root_certificates: bytes | None) -> grpc.ChannelCredentials | None:
    """TLS credentials; None for a plain connection."""
    return None if root_certificates is None else grpc.ssl_channel_credentials(root_certificates or None)


def metadata(api_key: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata of each call."""
    return () if api_key is None else (("authorization", f"Bearer {api_key}"),)
