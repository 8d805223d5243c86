"""The `paceline` command: one sub-command per module."""

from __future__ import annotations

import typer

from paceline.cli import (
    config,
    db,
    doctor,
    engine,
    keys,
    models,
    outcome,
    plan,
    report,
    serve,
    spec,
    tenant,
    workflow,
)
from paceline.cli.demo import demo

app = typer.Typer(
    help="Paceline serves coding agents: gRPC in front of speculative vLLM engines, with a ledger.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(serve.serve)
app.command()(demo)
app.command()(doctor.doctor)
app.command()(plan.plan)
app.command()(report.report)
app.add_typer(config.app, name="config")
app.add_typer(db.app, name="db")
app.add_typer(engine.app, name="engine")
app.add_typer(keys.app, name="keys")
app.add_typer(models.app, name="models")
app.add_typer(outcome.app, name="outcome")
app.add_typer(spec.app, name="spec")
app.add_typer(tenant.app, name="tenant")
app.add_typer(workflow.app, name="workflow")
