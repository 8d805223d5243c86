"""The gRPC server: services, health, reflection, limits and keepalive."""

from __future__ import annotations

import grpc
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from paceline import config
from paceline.errors import ConfigError
from paceline.rpc import listen
from paceline.rpc.costs import CostServicer
from paceline.rpc.interceptor import CallInterceptor, KeyVerifier
from paceline.rpc.steps import StepServicer
from paceline.rpc.workflows import WorkflowServicer
from paceline.v1 import (
    cost_service_pb2,
    cost_service_pb2_grpc,
    step_service_pb2,
    step_service_pb2_grpc,
    workflow_service_pb2,
    workflow_service_pb2_grpc,
)
from paceline.workflow.api import CostReader, StepUseCase, WorkflowUseCase

SERVICES = tuple(
    descriptor.full_name
    for file in (step_service_pb2, workflow_service_pb2, cost_service_pb2)
    for descriptor in file.DESCRIPTOR.services_by_name.values()
)
KEEPALIVE_OPTIONS = (
    ("grpc.keepalive_time_ms", 30_000),  # notices a client whose machine vanished, so that its step is let go
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),  # clients may ping every 10 s
)
MIB = 1024 * 1024
_log = structlog.get_logger(__name__)


class RpcServer:
    """A gRPC server that is bound to its port. Made by `create_server`."""

    def __init__(self, server: grpc.aio.Server, health_servicer: health.aio.HealthServicer, port: int) -> None:
        self._server = server
        self._health = health_servicer
        self.port = port
        """The port that it is bound to."""

    async def start(self) -> None:
        """Accept calls. Health says NOT_SERVING until `set_serving(True)`."""
        await self._server.start()

    async def set_serving(self, serving: bool) -> None:
        """Set the health of the whole server and of each service. Without effect once `stop` was called."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", *SERVICES):
            await self._health.set(name, status)

    async def stop(self, grace: float) -> None:
        """Refuse new calls, let running ones end within `grace` seconds, then cancel them."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(grace)


async def create_server(
    settings: config.Server,
    *,
    steps: StepUseCase,
    workflows: WorkflowUseCase,
    costs: CostReader,
    keys: KeyVerifier,
) -> RpcServer:
    """Build the server and bind its port; `start` it next.

    Raises `ConfigError` when the address is malformed, taken or open to other machines without protection, or the
    TLS files are unusable.
    """
    credentials = listen.credentials(settings)
    require_keys = listen.keys_required(settings)
    server = grpc.aio.server(
        interceptors=[CallInterceptor(keys, require_keys=require_keys)], options=_options(settings)
    )
    step_service_pb2_grpc.add_StepServiceServicer_to_server(StepServicer(steps), server)
    workflow_service_pb2_grpc.add_WorkflowServiceServicer_to_server(WorkflowServicer(workflows), server)
    cost_service_pb2_grpc.add_CostServiceServicer_to_server(CostServicer(costs), server)
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    if settings.reflection:
        reflection.enable_server_reflection((*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    bound = RpcServer(server, health_servicer, _bind(server, settings.listen, credentials))
    await bound.set_serving(False)
    if settings.insecure_listen and not listen.is_loopback(settings.listen):
        _log.warning("server.insecure", listen=settings.listen, tls=credentials is not None, keys=require_keys)
    return bound


def _options(settings: config.Server) -> list[tuple[str, int]]:
    size = settings.max_message_mib * MIB
    return [
        *KEEPALIVE_OPTIONS,
        ("grpc.max_receive_message_length", size),
        ("grpc.max_send_message_length", size),
        ("grpc.so_reuseport", 0),  # else a second server on the port would silently take half of the calls
    ]


def _bind(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError:
        raise ConfigError(
            f"server.listen: cannot bind {address}: another process has the port, or the host is none of this "
            "machine; stop the other process or set another port (0 takes a free one)",
            listen=address,
        ) from None
