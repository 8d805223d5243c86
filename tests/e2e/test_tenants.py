"""Safe by default: TLS and keys for other machines, tenants that do not see each other."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import Emulator
from tests.e2e.servers import PATIENCE, Server, installed

from paceline.errors import PacelineError, StepNotFound, Unauthenticated, WorkflowNotFound
from paceline_agents.aio import AsyncClient

pytestmark = pytest.mark.slow

PROMPT = "The same long question of two tenants. " * 4


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for this machine's loopback address, and its key."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        ["openssl", "req", "-x509", *curve, "-days", "2", *subject, "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    return certificate, key


@pytest.fixture
def server(tmp_path: Path, certificate: tuple[Path, Path], emulator: Callable[..., Emulator]) -> Iterator[Server]:
    """A server that other machines can reach."""
    engine = emulator("--time-scale=0", "--reply-tokens=8")
    settings = {
        "engines": {"far": {"model": "m", "url": engine.url}},
        "server": {
            "listen": "0.0.0.0:0",
            "tls_certificate": str(certificate[0]),
            "tls_key": str(certificate[1]),
        },
    }
    with installed(tmp_path / "paceline", settings) as one:
        yield one.start()


def make_key(server: Server, tenant: str) -> str:
    """A key, made as an operator makes it."""
    made = server.run("keys", "create", tenant, "--name", "test")
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@asynccontextmanager
async def caller(server: Server, certificate: tuple[Path, Path], key: str | None) -> AsyncIterator[AsyncClient]:
    """A client with a key."""
    target = f"127.0.0.1:{server.facts['port']}"
    async with AsyncClient(target, api_key=key, root_certificates=certificate[0].read_bytes()) as client:
        yield client


async def test_tenants_do_not_see_each_other(server: Server, certificate: tuple[Path, Path]) -> None:
    one, two = make_key(server, "tenant-one"), make_key(server, "tenant-two")
    async with caller(server, certificate, one) as first, caller(server, certificate, two) as second:
        own = await first.create_workflow(workflow_id="workflow-one")
        answer = await own.step(PROMPT, request_id="request-one")
        again = await (await first.create_workflow()).step(PROMPT)
        foreign: list[Coroutine[Any, Any, object]] = [
            second.get_workflow("workflow-one"),
            second.cost("workflow-one"),
            second.step("workflow-one", "hello").result(),
            second.fork_workflow("workflow-one"),
        ]
        for attempt in foreign:
            with pytest.raises(WorkflowNotFound):
                await attempt
        same_id = await second.create_workflow(workflow_id="workflow-one")
        foreign = [
            second.get_step(step_id=answer.step_id),
            second.get_step(request_id="request-one"),
            second.cancel_step(step_id=answer.step_id),
            second.step("workflow-one", "hello", parent_step_id=answer.step_id).result(),
            second.fork_workflow("workflow-one", answer.step_id),
        ]
        for attempt in foreign:
            with pytest.raises(StepNotFound):
                await attempt
        theirs = await same_id.step(PROMPT, request_id="request-one")
    assert again.usage.cached_prompt is not None
    assert again.usage.cached_prompt > 0
    assert theirs.usage.cached_prompt == 0  # the same text, and nothing in the cache of another tenant
    assert theirs.step_id != answer.step_id


async def test_a_call_needs_a_key_that_is_good(server: Server, certificate: tuple[Path, Path]) -> None:
    key = make_key(server, "tenant-one")
    for wrong in (None, "pl_0123456789abcdef_nothing", key[:-1] + ("A" if key[-1] != "A" else "B")):
        async with caller(server, certificate, wrong) as client:
            with pytest.raises(Unauthenticated):
                await client.create_workflow()
    async with caller(server, certificate, key) as client:
        await client.create_workflow()
        assert server.run("keys", "revoke", key.split("_")[1]).returncode == 0
        await _refused_at_last(client)
    assert key.rpartition("_")[2] not in server.log.read_text()
    assert key.rpartition("_")[2].encode() not in server.ledger.read_bytes()


async def _refused_at_last(client: AsyncClient) -> None:
    """A running server notices a revoked key within seconds."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            await client.create_workflow()
        except Unauthenticated:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("the revoked key is still good")


async def test_plain_text_gets_nowhere(server: Server, certificate: tuple[Path, Path]) -> None:
    key = make_key(server, "tenant-one")
    async with AsyncClient(f"127.0.0.1:{server.facts['port']}", api_key=key) as client:
        with pytest.raises(PacelineError):
            await client.create_workflow()
    async with caller(server, certificate, key) as client:
        await client.create_workflow()


def test_an_open_address_without_tls_does_not_start(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"server": {"listen": "0.0.0.0:0"}}
    with installed(tmp_path / "paceline", settings) as server:
        refused = server.run("serve")
    assert refused.returncode == 1
    assert "INVALID_CONFIG: server.listen: 0.0.0.0:0 can be reached from other machines" in refused.stderr


async def test_an_insecure_address_is_warned_of_at_each_start(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"server": {"listen": "0.0.0.0:0", "insecure_listen": True}}
    with installed(tmp_path / "paceline", settings) as server:
        for starts in (1, 2):
            server.start()
            warnings = server.events("server.insecure")
            assert [(line["level"], line["tls"], line["keys"]) for line in warnings] == [
                ("warning", False, False)
            ] * starts
            async with AsyncClient(f"127.0.0.1:{server.facts['port']}") as client:
                await client.create_workflow(model="m")
            assert server.stop() == 0
