"""One runtime per SQLite file, by an advisory lock on PATH.lock that dies with its process."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from pathlib import Path

from paceline.errors import LedgerInUse


class FileLock:
    """The lock of one SQLite ledger. The file stays behind; only a living process locks it."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self._path = ledger.with_name(ledger.name + ".lock")
        self._file: int | None = None

    def acquire(self, holder: str) -> None:
        """Take the lock in the name of `holder`. Raises `LedgerInUse`, which names who has it."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = _read(file)
            os.close(file)
            raise LedgerInUse(
                f"{self._ledger} is used by {owner}; stop it, or set ledger.url to another file or to PostgreSQL",
                path=self._ledger,
                holder=owner,
            ) from None
        os.ftruncate(file, 0)
        os.pwrite(
            file, json.dumps({"holder": holder, "pid": os.getpid(), "host": socket.gethostname()}).encode(), 0
        )
        self._file = file

    def release(self) -> None:
        """Give the lock back; nothing happens without it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @property
    def held(self) -> bool:
        """Whether this object has the lock."""
        return self._file is not None


def _read(file: int) -> str:
    try:
        owner = json.loads(os.pread(file, 4096, 0))
        return f"{owner['holder']} (process {owner['pid']} on {owner['host']})"
    except (ValueError, KeyError, TypeError):  # taken this moment, not yet written
        return "another process"
