"""One runtime per SQLite file, by an advisory lock on PATH.lock that dies with its process."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path

from paceline.errors import LedgerInUse
from paceline.ledger.failures import unavailable


class FileLock:
    """The lock of one SQLite ledger. The file stays behind; only a living process locks it."""

    def __init__(self, ledger: Path, holder: str) -> None:
        """Take the lock in the name of `holder`. Raises `LedgerInUse`, which names who has it, and
        `LedgerUnavailable` where the lock file cannot be made."""
        path = ledger.with_name(ledger.name + ".lock")
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            remedy = "make its folder writable"
            raise unavailable(str(ledger), f"cannot be locked ({error.strerror})", remedy) from None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = _read(file)
            os.close(file)
            raise LedgerInUse(
                f"{ledger} is used by {owner}; stop it, or set ledger.url to another file or to PostgreSQL",
                path=ledger,
                holder=owner,
            ) from None
        os.ftruncate(file, 0)
        note = {"holder": holder, "pid": os.getpid(), "host": socket.gethostname()}
        os.pwrite(file, json.dumps(note).encode(), 0)
        self._file: int | None = file

    def release(self) -> None:
        """Give the lock back; again does nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _read(file: int) -> str:
    try:
        owner = json.loads(os.pread(file, 4096, 0))
        return f"{owner['holder']} (process {owner['pid']} on {owner['host']})"
    except (ValueError, KeyError, TypeError):  # taken this moment, not yet written
        return "another process"
