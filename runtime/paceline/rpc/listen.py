"""Where the server listens, and what an address asks for."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path

import grpc

from paceline.config import Server
from paceline.errors import ConfigError


def is_loopback(listen: str) -> bool:
    """Whether only this machine can reach the address HOST:PORT. Raises `ConfigError` for anything else."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"server.listen: must be HOST:PORT, not {listen!r}", listen=listen)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def keys_required(settings: Server) -> bool:
    """Whether each call needs an API key."""
    return settings.require_keys or not (is_loopback(settings.listen) or settings.insecure_listen)


def credentials(settings: Server) -> grpc.ServerCredentials | None:
    """Return the TLS credentials; None for plain text.

    Raises `ConfigError` for an unusable certificate or key, and for plain text on an address that other machines
    reach, unless `insecure_listen` allows it.
    """
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None and key is None:
        if not (is_loopback(settings.listen) or settings.insecure_listen):
            raise ConfigError(
                f"server.listen: {settings.listen} can be reached from other machines; set server.tls_certificate "
                "and server.tls_key and make API keys, listen on 127.0.0.1, or set server.insecure_listen = true",
                listen=settings.listen,
            )
        return None
    if certificate is None or key is None:
        missing = "server.tls_certificate" if certificate is None else "server.tls_key"
        raise ConfigError(f"{missing}: a certificate and its key go together; set both", field=missing)
    pair = (_read(key, "server.tls_key"), _read(certificate, "server.tls_certificate"))
    _check_pair(certificate, key)
    return grpc.ssl_server_credentials([pair])


def _read(path: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{field}: {path}: {error.strerror}", field=field, path=path) from None


def _check_pair(certificate: Path, key: Path) -> None:
    """Read both as a server would: gRPC itself notices a bad file only when a client connects."""
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"server.tls_certificate: {certificate} and {key} are no certificate and its unencrypted key: {error}",
            certificate=certificate,
            key=key,
        ) from None
