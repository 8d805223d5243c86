"""The command `paceline-agent`."""

from __future__ import annotations

import argparse
import asyncio
import difflib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.errors import InvalidArgument, PacelineError
from paceline_agents.aio import AsyncClient
from paceline_agents.repair.report import ProgramReport, as_json, as_text
from paceline_agents.repair.run import RunOptions, run_all, run_one
from paceline_agents.repair.sandbox import API_KEY, Limits
from paceline_agents.repair.subject import SuiteSubject, open_file
from paceline_agents.repair.suite import load_suite

DEMO_SUITE = Path(__file__).with_name("demo_suite.jsonl")
_MIB = 1 << 20


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit: 0 done, 1 not repaired or given up, 2 wrong usage or no server."""
    options = _parser().parse_args(arguments)
    try:
        reports = asyncio.run(_repair(options))
    except (PacelineError, OSError) as error:
        raise SystemExit(_complain(error)) from error
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    _say("\n" + as_text(reports))
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(reports), indent=2) + "\n", encoding="utf-8")
    bad = {"abandoned"} if options.file is None else {"abandoned", "failed"}
    raise SystemExit(int(any(report.outcome in bad for report in reports)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="paceline-agent", description="Reference agent of Paceline.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    repair = commands.add_parser("repair", help="repair Python programs whose tests fail")
    what = repair.add_mutually_exclusive_group(required=True)
    what.add_argument("--file", type=Path, metavar="F", help="repair this file in place; needs --tests")
    what.add_argument("--suite", type=Path, metavar="PATH", help="repair each program of a JSONL suite")
    what.add_argument("--demo", action="store_true", help="repair the five programs that come with the agent")
    repair.add_argument("--tests", metavar="CMD", help="command that fails while the file is wrong")
    repair.add_argument("--target", default="127.0.0.1:7450", metavar="HOST:PORT", help="the Paceline server")
    repair.add_argument("--api-key", default=os.environ.get(API_KEY), metavar="KEY", help=f"default: ${API_KEY}")
    repair.add_argument("--ca", type=Path, metavar="PEM", help="certificates to trust; switches TLS on")
    repair.add_argument("--model", default="", help="model name; default: the server's only one")
    repair.add_argument("--turns", type=_positive, default=8, metavar="N", help="most questions a program (8)")
    repair.add_argument("--workers", type=_positive, default=1, metavar="N", help="programs at a time (1)")
    repair.add_argument("--label", type=_label, action="append", default=[], metavar="K=V", help="workflow label")
    repair.add_argument("--json", type=Path, metavar="PATH", help="write the report as JSON, too")
    repair.add_argument("--test-seconds", type=float, default=60.0, metavar="S", help="limit of CMD (60)")
    repair.add_argument("--test-memory", type=_positive, default=2048, metavar="MIB", help="limit of CMD (2048)")
    return parser


async def _repair(options: argparse.Namespace) -> list[ProgramReport]:
    run_options = RunOptions(options.turns, options.model, dict(options.label), options.workers)
    certificates = None if options.ca is None else options.ca.read_bytes()
    async with AsyncClient(options.target, api_key=options.api_key, root_certificates=certificates) as client:
        if options.file is not None:
            return [await _repair_file(client, options, run_options)]
        suite = load_suite(DEMO_SUITE if options.demo else options.suite)
        results = await run_all(client, [SuiteSubject(program) for program in suite], run_options, _say)
        return [report for report, _ in results]


async def _repair_file(client: AsyncClient, options: argparse.Namespace, run_options: RunOptions) -> ProgramReport:
    if not options.tests:
        raise InvalidArgument(
            "--file needs --tests CMD, a command that fails while the file is wrong", field="tests"
        )
    limits = Limits(seconds=options.test_seconds, memory_bytes=options.test_memory * _MIB)
    with open_file(options.file, options.tests, limits) as subject:
        if (await subject.diagnose(subject.source)).passed:
            raise InvalidArgument(f"`{options.tests}` passes already: there is nothing to repair", field="tests")
        report, source = await run_one(client, subject, run_options, _say)
        name = str(options.file)
        difference = difflib.unified_diff(
            subject.source.splitlines(keepends=True), source.splitlines(keepends=True), name, name
        )
        _say("".join(difference).rstrip())
        return report


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not K=V")
    return key, value


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _complain(error: Exception) -> int:
    sys.stderr.write(f"paceline-agent: {error}\n")
    return 2
