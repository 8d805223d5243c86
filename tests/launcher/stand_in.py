"""Stands in for vLLM's server: takes its command line, answers /health, has processes that resist being stopped.

Variables: STAND_IN_PIDS (file that gets one process id per line, this process last), STAND_IN_LIFE (seconds until
it ends by itself with code 3), STAND_IN_ERROR (print this and end at once with code 1), STAND_IN_DEAF (do not
listen).
"""

import http.server
import os
import signal
import sys
import threading
import time
from pathlib import Path


def note(pids: Path) -> None:
    """Add this process to the file."""
    with pids.open("a") as file:
        file.write(f"{os.getpid()}\n")


def plain_child(pids: Path) -> None:
    """A child like a worker: stays in the session."""
    if os.fork() == 0:
        note(pids)
        time.sleep(600)
        os._exit(0)


def resisting_child(pids: Path, depth: int = 2) -> None:
    """A chain of processes, each in its own session and deaf to SIGTERM; all but the last end at once."""
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if depth:
            resisting_child(pids, depth - 1)
        else:
            note(pids)
            time.sleep(600)
        os._exit(0)


class Health(http.server.BaseHTTPRequestHandler):
    """Always healthy."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Keep the log to what a test writes."""


def main() -> None:
    """Start the processes, then serve."""
    if error := os.environ.get("STAND_IN_ERROR"):
        sys.exit(error)
    if os.environ.get("STAND_IN_DEAF"):
        sys.stderr.write("Starting to load model stand-in...\n")
        time.sleep(600)
    pids = Path(os.environ["STAND_IN_PIDS"])
    pids.unlink(missing_ok=True)
    plain_child(pids)
    resisting_child(pids)
    while not pids.exists() or len(pids.read_text().split()) < 2:
        time.sleep(0.01)
    note(pids)
    if life := os.environ.get("STAND_IN_LIFE"):
        threading.Timer(float(life), os._exit, [3]).start()
    port = int(sys.argv[sys.argv.index("--port") + 1])
    http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()


if __name__ == "__main__":
    main()
