"""The server as a process sees it: address, TLS, keys, health, reflection."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from structlog.testing import capture_logs
from tests.rpc.fakes import KEY, KEY_TENANT, Served, make_server, serving

from paceline.config import Server
from paceline.errors import ConfigError
from paceline.rpc.server import SERVICES
from paceline.v1 import workflow_service_pb2 as pb
from paceline.v1 import workflow_service_pb2_grpc as pb_grpc

NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING
CREATE = pb.CreateWorkflowRequest(workflow_id="workflow-1")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a certificate for localhost and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        ["openssl", "req", "-x509", *curve, "-days", "2", *subject, "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )
    return certificate, key


async def create(served: Served, authorization: str | None = None) -> None:
    """Create a workflow."""
    metadata = (("authorization", authorization),) if authorization is not None else None
    await pb_grpc.WorkflowServiceStub(served.channel).CreateWorkflow(CREATE, metadata=metadata)


async def health(channel: grpc.aio.Channel, service: str = "") -> int:
    """Return the health of a service."""
    stub: Any = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    assert isinstance(answer, health_pb2.HealthCheckResponse)
    return answer.status


async def test_loopback_needs_no_key_and_serves_the_default_tenant(served: Served) -> None:
    await create(served)
    assert set(served.workflows.known) == {("default", "workflow-1")}


async def test_a_key_names_its_tenant_even_where_none_is_needed(served: Served) -> None:
    await create(served, f"Bearer {KEY}")
    assert set(served.workflows.known) == {(KEY_TENANT, "workflow-1")}


@pytest.mark.parametrize("authorization", ["Bearer pl_bad", KEY, "Basic x", "", "Bearer", "Bearer "])
@pytest.mark.parametrize("require_keys", [False, True])
async def test_a_bad_key_is_refused_everywhere(authorization: str, require_keys: bool) -> None:
    async with serving(Server(listen="127.0.0.1:0", require_keys=require_keys)) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await create(served, authorization)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert served.workflows.known == {}


async def test_a_required_key_is_asked_for() -> None:
    async with serving(Server(listen="127.0.0.1:0", require_keys=True)) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await create(served)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await create(served, f"bearer {KEY}")
        assert set(served.workflows.known) == {(KEY_TENANT, "workflow-1")}
        assert await health(served.channel) == SERVING


async def test_tenants_do_not_mix_on_one_connection(served: Served) -> None:
    await create(served, f"Bearer {KEY}")
    stub = pb_grpc.WorkflowServiceStub(served.channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetWorkflow(pb.GetWorkflowRequest(workflow_id="workflow-1"))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_tls_serves_and_plain_text_does_not(tls: tuple[Path, Path]) -> None:
    certificate, key = tls
    settings = Server(listen="127.0.0.1:0", tls_certificate=certificate, tls_key=key)
    credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
    async with serving(settings, credentials) as served:
        await create(served)
        assert len(served.workflows.known) == 1
        async with grpc.aio.insecure_channel(f"127.0.0.1:{served.server.port}") as plain:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await pb_grpc.WorkflowServiceStub(plain).CreateWorkflow(CREATE)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_an_open_address_with_tls_asks_for_keys(tls: tuple[Path, Path]) -> None:
    certificate, key = tls
    settings = Server(listen="0.0.0.0:0", tls_certificate=certificate, tls_key=key)
    async with serving(settings, grpc.ssl_channel_credentials(certificate.read_bytes())) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await create(served)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await create(served, f"Bearer {KEY}")


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.1:7450", "paceline.internal:7450"])
async def test_an_open_address_without_tls_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="insecure_listen") as caught:
        await make_server(Server(listen=listen))
    assert listen in caught.value.message


async def test_an_insecure_address_works_and_is_logged() -> None:
    with capture_logs() as logs:
        async with serving(Server(listen="0.0.0.0:0", insecure_listen=True)) as served:
            await create(served)
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert [line["event"] for line in warnings] == ["server.insecure"]


@pytest.mark.parametrize(
    "listen", ["", "7450", ":7450", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"]
)
async def test_a_malformed_address_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        await make_server(Server(listen=listen))


async def test_a_taken_port_is_named_with_its_remedy(served: Served) -> None:
    with pytest.raises(ConfigError, match=f"127.0.0.1:{served.server.port}.*stop the other process"):
        await make_server(Server(listen=f"127.0.0.1:{served.server.port}"))


async def test_ipv6_loopback_counts_as_loopback() -> None:
    server = await make_server(Server(listen="[::1]:0"))
    assert server.port > 0
    await server.stop(0)


async def test_unusable_tls_files_are_named(tls: tuple[Path, Path], tmp_path: Path) -> None:
    certificate, key = tls
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate")
    for files, expected in (
        ({"tls_certificate": certificate}, "server.tls_key"),
        ({"tls_key": key}, "server.tls_certificate"),
        ({"tls_certificate": tmp_path / "absent.pem", "tls_key": key}, "absent.pem"),
        ({"tls_certificate": garbage, "tls_key": key}, "garbage.pem"),
        ({"tls_certificate": key, "tls_key": certificate}, "server.tls_certificate"),
    ):
        with pytest.raises(ConfigError, match=expected):
            await make_server(Server.model_validate({"listen": "127.0.0.1:0", **files}))


@pytest.mark.parametrize("name", ["", *SERVICES])
async def test_health_follows_the_callback(served: Served, name: str) -> None:
    assert await health(served.channel, name) == SERVING
    await served.server.set_serving(False)
    assert await health(served.channel, name) == NOT_SERVING
    await served.server.set_serving(True)
    assert await health(served.channel, name) == SERVING


async def test_a_fresh_server_does_not_serve_yet() -> None:
    server = await make_server(Server(listen="127.0.0.1:0"))
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        assert await health(channel) == NOT_SERVING
    await server.stop(0)


async def list_services(served: Served) -> set[str]:
    """Return the services that reflection names."""
    channel: Any = served.channel  # the stub's types know sync channels only
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
    answers = [answer async for answer in call]
    return {service.name for answer in answers for service in answer.list_services_response.service}


async def test_reflection_names_all_services(served: Served) -> None:
    assert await list_services(served) == {
        "paceline.v1.StepService",
        "paceline.v1.WorkflowService",
        "paceline.v1.CostService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


async def test_reflection_can_be_switched_off() -> None:
    async with serving(Server(listen="127.0.0.1:0", reflection=False)) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await list_services(served)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
