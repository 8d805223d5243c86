"""What the benchmarks share: machine facts, percentiles, result files, and runtimes and emulators as processes."""

from __future__ import annotations

import json
import os
import platform
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from paceline.cli.config_text import toml_value

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "build" / "benchmarks"
_START_SECONDS = 60.0
_PACKAGES = ("paceline", "grpcio", "protobuf", "aiohttp", "tokenizers", "sqlalchemy")


def machine() -> dict[str, Any]:
    """What the figures depend on. The load average is that of the start: it shows who else was at work."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "versions": {name: version(name) for name in _PACKAGES},
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


class Report:
    """Prints the command and the machine at once, tables as they come, and writes all of it as JSON."""

    def __init__(self, name: str) -> None:
        self._name = name
        module = Path(sys.argv[0]).stem
        command = shlex.join(["python", "-m", f"benchmarks.{module}", *sys.argv[1:]])
        self.values: dict[str, Any] = {"command": command, "machine": machine()}
        self._console = Console(width=115)
        facts = self.values["machine"]
        print(f"$ {command}")
        print(f"{facts['date']}, {facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB")
        print(facts["system"])
        packages = ", ".join(f"{package} {number}" for package, number in facts["versions"].items())
        print(f"Python {facts['python']}, {packages}; load average {facts['load_average']}\n", flush=True)

    def say(self, text: str) -> None:
        """Print a line of progress or explanation."""
        print(text, flush=True)

    def table(self, key: str, title: str, rows: Sequence[dict[str, Any]]) -> None:
        """Print rows, whose keys are the columns, and keep them under `key`."""
        self.values[key] = list(rows)
        table = Table(title=title, title_justify="left")
        for column in rows[0]:
            table.add_column(column, justify="left" if isinstance(rows[0][column], str) else "right")
        for row in rows:
            table.add_row(*(shown(value) for value in row.values()))
        self._console.print(table)

    def write(self) -> None:
        """Write build/benchmarks/NAME.json."""
        self.values["load_average_at_end"] = [round(load, 2) for load in os.getloadavg()]
        RESULTS.mkdir(parents=True, exist_ok=True)
        path = RESULTS / f"{self._name}.json"
        path.write_text(json.dumps(self.values, indent=2) + "\n")
        print(f"load average at the end {self.values['load_average_at_end']}; {path.relative_to(ROOT)}")


def real_engine(model: str, **more: Any) -> dict[str, Any]:
    """Settings of a CPU engine that Paceline starts, by the Python of $PACELINE_TEST_ENGINE_PYTHON, else by the
    installed one."""
    python = os.environ.get("PACELINE_TEST_ENGINE_PYTHON", "")
    return {"model": model, "platform": "cpu", "python": python, "max_model_len": 4096, "kv_cache_gib": 1, **more}


def real_model() -> str:
    """The folder of $PACELINE_TEST_MODEL, else the small model that `make model` fetches."""
    return os.environ.get("PACELINE_TEST_MODEL", "qwen2.5-coder-0.5b")


def shown(value: object) -> str:
    """A value in a table."""
    match value:
        case None:
            return "-"
        case float():
            return f"{value:,.2f}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear interpolation between the nearest ranks."""
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return statistics.median(values)


def source_text() -> str:
    """Program text to fill contexts with: this repository's own."""
    files = sorted(path for folder in ("runtime", "agents", "tests") for path in (ROOT / folder).rglob("*.py"))
    return "\n".join(path.read_text() for path in files if "v1" not in path.parts)


@contextmanager
def emulator(*flags: str) -> Iterator[str]:
    """Run an emulated engine; yields its URL."""
    command = [sys.executable, "-m", "paceline.emulator", "--port=0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


@dataclass(frozen=True, slots=True)
class Served:
    """A runtime in a process of its own."""

    target: str
    process: psutil.Process

    def cpu_seconds(self) -> float:
        """CPU time of the process so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def engine_urls(self) -> list[str]:
        """Addresses of the engines that it has started, found by their command lines."""
        commands = [child.cmdline() for child in self.process.children(recursive=True)]
        ports = dict.fromkeys(line[line.index("--port") + 1] for line in commands if "--port" in line)
        return [f"http://127.0.0.1:{port}" for port in ports]


@contextmanager
def serve(name: str, settings: dict[str, Any]) -> Iterator[Served]:
    """Run `paceline serve` on a fresh ledger; its log goes to build/benchmarks/NAME.log."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="paceline-bench-") as scratch,
        (RESULTS / f"{name}.log").open("wb") as log,
    ):
        folder = Path(scratch)
        values = {
            "server": {"listen": "127.0.0.1:0", "metrics_listen": ""},
            "ledger": {"url": f"sqlite:///{folder / 'ledger.db'}"},
            "allow_unpriced": True,
            **settings,
        }
        # What stands outside of a table has to come first in a TOML file; inline tables are all outside.
        (folder / "paceline.toml").write_text("".join(f"{k} = {toml_value(v)}\n" for k, v in values.items()))
        ready = folder / "ready.json"
        code = "from paceline.cli.main import app; app()"
        arguments = ["serve", f"--config={folder / 'paceline.toml'}", f"--ready-file={ready}"]
        with subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=log) as process:
            try:
                yield Served(_address(process, ready), psutil.Process(process.pid))
            finally:
                process.send_signal(signal.SIGTERM)


def _address(process: subprocess.Popen[bytes], ready: Path) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"the runtime ended with {process.returncode}; see its log in {RESULTS}")
        if ready.exists() and (text := ready.read_text()):
            return str(json.loads(text)["address"])
        time.sleep(0.05)
    raise SystemExit(f"the runtime did not start within {_START_SECONDS:g} s; see its log in {RESULTS}")
