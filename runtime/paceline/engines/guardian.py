"""A small process between Paceline and an engine: however Paceline ends, nothing of the engine stays.

Run as `python guardian.py GRACE_SECONDS COMMAND...` with a pipe on standard input whose write end only the parent
holds. The end of that pipe, SIGTERM, SIGINT, SIGHUP or the engine's own exit end every descendant: SIGTERM, then
SIGKILL after the grace. It is the subreaper of its descendants (Linux), so that a grandchild that left its session
or lost its parent is found, too. Its exit code is the engine's, 128 + N after signal N. Should the guardian itself
be killed, the kernel kills the engine's first process.

It uses the standard library only and starts in a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
KILL_SECONDS = 10.0
"""How long processes may take to vanish after SIGKILL; one that hangs in the kernel is left to it."""


def main(arguments: list[str]) -> int:
    """Run the command until it ends or is to end; returns the exit code."""
    grace, command = float(arguments[0]), arguments[1:]
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake = _wake_on_signals()
    engine = _spawn(command)
    status = _wait(engine, wake)
    ended = _end_descendants(engine, wake, signal.SIGTERM, grace)
    killed = _end_descendants(engine, wake, signal.SIGKILL, KILL_SECONDS)
    code = next((code for code in (status, ended, killed) if code is not None), -signal.SIGKILL)
    return code if code >= 0 else 128 - code


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _wake_on_signals() -> int:
    """Returns a descriptor that receives the number of each signal."""
    wake, notify = os.pipe()
    for end in (wake, notify):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *STOP_SIGNALS):
        signal.signal(number, lambda _number, _frame: None)
    return wake


def _spawn(command: list[str]) -> int:
    guardian = os.getpid()
    engine = os.fork()
    if engine == 0:
        _become(command, guardian)
    return engine


def _become(command: list[str], guardian: int) -> NoReturn:
    """In the child: turn into the engine, in a session of its own."""
    try:
        os.setsid()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guardian:  # it died before the kernel knew whom to kill
            os._exit(127)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvp(command[0], command)  # noqa: S606 - the command is the launcher's, and no shell is wanted
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _wait(engine: int, wake: int) -> int | None:
    """Wait for the engine's end (its code) or an order to stop (None)."""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if 0 in ready and not os.read(0, 4096):
            return None
        if wake in ready:
            numbers = os.read(wake, 4096)
            if (code := _reap(engine)) is not None:
                return code
            if any(number in STOP_SIGNALS for number in numbers):
                return None


def _end_descendants(engine: int, wake: int, number: signal.Signals, seconds: float) -> int | None:
    """Signal every descendant once and wait until none is left; returns the engine's code if it ended now."""
    deadline = time.monotonic() + seconds
    code: int | None = None
    told: set[int] = set()
    while living := _descendants():
        for process in living - told:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)
        told |= living
        left = deadline - time.monotonic()
        if left <= 0:
            break
        if select.select([wake], [], [], left)[0]:
            os.read(wake, 4096)
        code = _first(code, _reap(engine))
    return _first(code, _reap(engine))


def _first(one: int | None, other: int | None) -> int | None:
    return other if one is None else one


def _reap(engine: int) -> int | None:
    """Collect every ended child; returns the engine's code when it was among them."""
    code: int | None = None
    with suppress(ChildProcessError):
        while True:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                break
            if process == engine:
                code = os.waitstatus_to_exitcode(status)
    return code


def _descendants() -> set[int]:
    """The living descendants of this process."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    children.setdefault(int(parent), []).append(int(entry.name))
    found: set[int] = set()
    queue = [os.getpid()]
    while queue:
        below = children.get(queue.pop(), [])
        found.update(below)
        queue.extend(below)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
