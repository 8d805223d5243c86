"""Where `paceline spec tune` has its steps from."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from paceline.cli.access import the_workflow, with_ledger
from paceline.errors import ConfigError
from paceline.ledger.store import SqlLedger
from paceline.speculation.tune import sample
from paceline.speculation.tune.success import Recorded, recorded
from paceline.transcript import chat
from paceline.workflow.model import Workflow
from paceline.workflow.ports import WorkflowFilter

PAGE = 500


@dataclass(frozen=True, slots=True)
class Source:
    """Where the steps come from: a file, or workflows of the ledger."""

    workflows: tuple[str, ...]
    labels: dict[str, str]
    tenant: str | None
    steps_file: Path | None
    count: int
    """Most steps."""
    max_tokens: int
    """Most tokens to generate per step."""

    def read(self, model_path: str, file: Path | None) -> tuple[list[sample.ReplayStep], Recorded]:
        """Steps, evenly spread, and what is recorded of all the workflows. Raises `ConfigError` without a source,
        with two, or without steps."""
        from_ledger = bool(self.workflows or self.labels)
        if from_ledger == bool(self.steps_file):
            raise ConfigError("name the steps: --workflow or --label for the ledger's, or --steps-file")
        model = asyncio.run(chat.load(model_path))
        if self.steps_file:
            lines = asyncio.run(sample.of_file(self.steps_file, model, self.max_tokens))
            return sample.choose(lines, self.count), Recorded()

        async def work(ledger: SqlLedger) -> tuple[list[sample.ReplayStep], Recorded]:
            found = await sample.finished_steps(ledger, await self._workflows(ledger))
            steps = [step for _, steps in found for step in steps]
            chosen = await sample.of_steps(ledger, steps, model.tokenizer_hash, self.count, self.max_tokens)
            return chosen, recorded(found)

        return with_ledger(file, work)

    async def _workflows(self, ledger: SqlLedger) -> list[Workflow]:
        found = [await the_workflow(ledger, self.tenant, one) for one in self.workflows]
        token = ""
        while self.labels:
            if self.tenant is None:
                raise ConfigError("--label: name the tenant by --tenant")
            page = await ledger.list_workflows(self.tenant, WorkflowFilter(self.labels), PAGE, token)
            found += page.items
            token = page.next_token
            if not token:
                break
        return list({(one.tenant, one.workflow_id): one for one in found}.values())
