"""The commands on a real ledger file, beside a runtime that has it open."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import typer
from tests.ledger import rows
from tests.ledger.rows import TENANT, attempt, finished, run_step, step
from typer.testing import CliRunner, Result

from paceline.cli import db, keys, outcome, report, workflow
from paceline.cli.money import usd
from paceline.ledger.store import SqlLedger
from paceline.workflow.model import Cost, Outcome, OutcomeKind, OutcomeSource

app = typer.Typer()
app.command()(report.report)
for name, module in (("db", db), ("keys", keys), ("outcome", outcome), ("workflow", workflow)):
    app.add_typer(module.app, name=name)


class Commands:
    """Runs commands against one ledger."""

    def __init__(self, config: Path) -> None:
        self._config = config

    def run(self, *words: str, columns: int = 300) -> Result:
        arguments = [*words, "--config", str(self._config)]
        with ThreadPoolExecutor(1) as thread:  # a command has an event loop of its own
            return thread.submit(CliRunner().invoke, app, arguments, env={"COLUMNS": str(columns)}).result()

    def ok(self, *words: str, columns: int = 300) -> str:
        result = self.run(*words, columns=columns)
        assert result.exit_code == 0, result.output
        return result.stdout


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    config = tmp_path / "paceline.toml"
    config.write_text(f'[ledger]\nurl = "sqlite:///{tmp_path / "ledger.db"}"\n')
    return Commands(config)


@pytest.fixture
async def filled(sqlite_url: str, commands: Commands) -> AsyncIterator[Commands]:
    """Two workflows with a step each; one succeeded. The prices are examples. A runtime has the file open."""
    ledger = await SqlLedger.open(sqlite_url, write_timeout=10, holder="rt-serving")
    for number in (1, 2):
        await ledger.create_workflow(rows.workflow(f"wf-0000{number}", labels={"team": f"t{number}"}), "hash")
        await run_step(ledger, step(f"st-0000{number}", workflow_id=f"wf-0000{number}"))
    success = Outcome(OutcomeKind.SUCCEEDED, OutcomeSource.CLIENT)
    await ledger.finish_workflow(TENANT, "wf-00001", success)
    yield commands
    await ledger.close()


def lines_of(text: str) -> Iterator[str]:
    return (" ".join(line.replace("│", " ").replace("┃", " ").split()) for line in text.splitlines())


def test_db_upgrade_makes_the_file_and_check_looks_at_it(commands: Commands) -> None:
    missing = commands.run("db", "check")
    assert missing.exit_code == 1
    assert "does not exist; run `paceline db upgrade`" in missing.stderr
    assert "is up to date" in commands.ok("db", "upgrade")
    assert "0 workflows, 0 steps, 0 attempts" in commands.ok("db", "check")


async def test_an_upgrade_beside_a_runtime_is_refused(filled: Commands) -> None:
    refused = filled.run("db", "upgrade")
    assert refused.exit_code == 1
    assert "used by rt-serving" in refused.stderr


async def test_report_as_a_table(filled: Commands) -> None:
    text = filled.ok("report", "--by", "label:team")
    lines = list(lines_of(text))
    assert lines[1].endswith("list cost retries infra cost per success")
    assert lines[2].endswith("EXAMPLE EXAMPLE EXAMPLE EXAMPLE")
    assert "t1 1/1 1 1 100 900 50 40 30 2.50 75% 32.7 $0.000001 $0.000000 $0.000000 $0.000001" in lines
    assert "t2 0/1 1 1 100 900 50 40 30 2.50 75% 32.7 $0.000001 $0.000000 $0.000000 -" in lines
    assert "total 1/2 2 2 200 1800 100 80 60 2.50 75% 32.7 $0.000002 $0.000000 $0.000000 $0.000001" in lines
    assert "1 of 2 workflows have an outcome" in text
    assert "EXAMPLE: these are example prices" in text


async def test_report_by_attempts_leaves_out_what_is_counted_by_workflow(filled: Commands) -> None:
    text = filled.ok("report", "--by", "class", "--by", "pool", "--by", "context")
    lines = list(lines_of(text))
    header = "class pool context steps attempts uncached cached output drafted accepted length rate tokens/s"
    assert lines[1] == "list cost retries infra cost"
    assert lines[2] == f"{header} EXAMPLE EXAMPLE EXAMPLE"
    assert any(
        line.startswith("tool call model-a+ngram <=1024 2 2 200 1800 100 80 60 2.50 75% 32.7 $") for line in lines
    )
    assert "2 answers report what was drafted." in text
    assert "cost per success" not in text
    document = json.loads(filled.ok("report", "--by", "class", "--json"))
    (group,) = document["groups"]
    assert (group["class"], group["mean_acceptance_length"], group["draft_step_count"]) == ("tool call", 2.5, 40)
    assert [name for name, value in group.items() if value is None] == [
        *(
            "workflow_count",
            "succeeded_workflow_count",
            "known_outcome_workflow_count",
            "cost_per_success_usd_nanos",
        )
    ]
    assert document["total"]["workflow_count"] == 2


async def test_a_narrow_report_by_attempts_keeps_what_speculation_did(filled: Commands) -> None:
    lines = list(lines_of(filled.ok("report", "--by", "class", columns=80)))
    assert lines[2] == "class steps output drafted accepted length rate tokens/s EXAMPLE"
    lines = list(lines_of(filled.ok("report", columns=80)))
    assert lines[2] == "model succeeded steps uncached cached output EXAMPLE EXAMPLE"


async def test_report_as_json(filled: Commands) -> None:
    document = json.loads(filled.ok("report", "--by", "workflow", "--json"))
    assert [group["workflow"] for group in document["groups"]] == ["wf-00001", "wf-00002"]
    assert [group["cost_per_success_usd_nanos"] for group in document["groups"]] == [1_000, None]
    assert document["total"]["list_cost_usd_nanos"] == 2_000
    assert document["total"]["prices"] == "EXAMPLE"
    assert document["coverage"] == "1 of 2 workflows have an outcome"


async def test_report_as_csv(filled: Commands) -> None:
    found = list(csv.DictReader(io.StringIO(filled.ok("report", "--by", "outcome", "--csv"))))
    assert [(row["outcome"], row["list_cost_usd_nanos"], row["prices"]) for row in found] == [
        ("", "1000", "EXAMPLE"),
        ("succeeded", "1000", "EXAMPLE"),
    ]
    assert [row["cost_per_success_usd_nanos"] for row in found] == ["", "1000"]


async def test_report_filters(filled: Commands) -> None:
    def count(*words: str) -> int:
        return int(json.loads(filled.ok("report", "--json", *words))["total"]["workflow_count"])

    assert count("--label", "team=t2") == 1
    assert count("--model", "model-b") == 0
    assert count("--since", "2025-11-30", "--until", "2025-12-01") == 2
    assert count("--until", "2025-11-30") == 0
    assert count("--tenant", "other") == 0


async def test_report_without_a_success_shows_no_ratio(filled: Commands) -> None:
    text = filled.ok("report", "--label", "team=t2")
    assert "0 of 1 workflows have an outcome; none succeeded, so there is no cost per success." in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--by", "colour"], "group_by: no key colour"),
        (["--label", "team"], "--label team: write NAME=VALUE"),
        (["--json", "--csv"], "give one of them"),
    ],
)
async def test_report_names_what_is_wrong(filled: Commands, words: list[str], message: str) -> None:
    refused = filled.run("report", *words)
    assert refused.exit_code == 1
    assert message in refused.stderr


async def test_workflow_show(filled: Commands) -> None:
    text = filled.ok("workflow", "show", "wf-00001")
    assert "succeeded (by client)" in text
    assert "st-00001 finished tool call 1 1000 900 50 40 30 20 2.25 EXAMPLE $0.000001" in "\n".join(lines_of(text))
    document = json.loads(filled.ok("workflow", "show", "wf-00001", "--json"))
    assert document["workflow"]["labels"] == {"team": "t1"}
    assert document["steps"][0]["output"]["content"] == "done"
    assert document["cost"]["list_nanos"] == 1_000


async def test_outcomes_are_set_and_corrected_beside_a_runtime(filled: Commands, sqlite_url: str) -> None:
    filled.ok("workflow", "finish", "wf-00002", "abandoned", "--note", "gave up")
    filled.ok("outcome", "set", "wf-00001", "failed", "--source", "check_command", "--exit-code", "1")
    ledger = await SqlLedger.open(sqlite_url, write_timeout=10)
    found = [(await ledger.get_workflow(TENANT, f"wf-0000{number}")).outcome for number in (1, 2)]
    await ledger.close()
    assert [item and (item.kind.value, item.source.value, item.check_exit_code, item.note) for item in found] == [
        ("failed", "check_command", 1, ""),
        ("abandoned", "person", None, "gave up"),
    ]


async def test_an_id_of_several_tenants_needs_the_tenant(filled: Commands, sqlite_url: str) -> None:
    ledger = await SqlLedger.open(sqlite_url, write_timeout=10)
    await ledger.create_workflow(rows.workflow("wf-00001", tenant="other"), "hash")
    await ledger.close()
    refused = filled.run("workflow", "show", "wf-00001")
    assert "exists for other, team-a; name one" in refused.stderr
    assert "team-a" in filled.ok("workflow", "show", "wf-00001", "--tenant", "team-a")
    assert "there is no workflow wf-nobody" in filled.run("workflow", "show", "wf-nobody").stderr


async def test_keys(filled: Commands) -> None:
    key = filled.ok("keys", "create", "tenant-a", "--name", "ci").strip()
    key_id = key.split("_")[1]
    listed = filled.ok("keys", "list")
    assert key_id in listed
    assert key not in listed
    assert filled.ok("keys", "revoke", key_id) == f"revoked {key_id}\n"
    assert "there is no key nobody" in filled.run("keys", "revoke", "nobody").stderr


@pytest.mark.parametrize(
    ("nanos", "text"),
    [(0, "$0.00"), (1, "$0.000000001"), (1_500_000_000, "$1.50"), (10_000_000_000, "$10.00"), (None, "-")],
)
def test_amounts_are_shown_exactly(nanos: int | None, text: str) -> None:
    assert usd(nanos, example=False) == text


async def test_unpriced_costs_are_not_shown_as_zero(sqlite_url: str, commands: Commands) -> None:
    ledger = await SqlLedger.open(sqlite_url, write_timeout=10)
    await ledger.create_workflow(rows.workflow(), "hash")
    await run_step(ledger, step(), finished(attempt(step()), cost=Cost()))
    await ledger.close()
    text = commands.ok("report")
    assert "model-a 0/1 1 1 100 900 50 40 30 2.50 75% 32.7 - - - -" in list(lines_of(text))
    assert "1 attempts have no list price" in text
