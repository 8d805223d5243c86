"""Free disk space, asked before something large is written."""

from __future__ import annotations

import shutil
from pathlib import Path

GIB = 1 << 30


def free_gib(folder: Path) -> float:
    """Free space in GiB where the folder is or would be made."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free / GIB


def shortage(folder: Path, needed_gib: float) -> str:
    """Why `needed_gib` do not fit into the folder; empty when they do."""
    free = free_gib(folder)
    if free >= needed_gib:
        return ""
    return f"{folder}: {free:.1f} GiB free, {needed_gib:.1f} needed; free some, or point XDG_CACHE_HOME elsewhere"
