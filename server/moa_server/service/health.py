"""The service grpc.health.v1, whose connections count as others do.

State: whether the server drains. Invariant: draining ends readiness for good, and nothing else: a server that ends its
running answers is alive.
"""

from __future__ import annotations

from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio as aio_health  # type: ignore[attr-defined]  # the stubs do not know it

from moa_server.service.admission.allowance import Allowances
from moa_server.service.service import SERVICE, Context

READINESS = ("", SERVICE)
LIVENESS, STARTUP = "liveness", "startup"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health(aio_health.HealthServicer):  # type: ignore[misc]  # the stubs do not know it
    """Answers questions about the server's health, without delay.

    Args:
        allowances: of all connections.
    """

    def __init__(self, allowances: Allowances) -> None:
        super().__init__()
        self._allowances = allowances
        self._draining = False

    async def tell(self, *, hangs: bool) -> None:
        """Says how a server is that has started."""
        await self.set(STARTUP, SERVING)
        for name in (*(() if self._draining else READINESS), LIVENESS):
            await self.set(name, NOT_SERVING if hangs else SERVING)

    async def drain(self) -> None:
        """Says from now on that the server takes nothing new."""
        self._draining = True
        for name in READINESS:
            await self.set(name, NOT_SERVING)

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Context) -> health_pb2.HealthCheckResponse:
        self._allowances.of(context.peer())
        return await super().Check(request, context)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Context) -> None:
        self._allowances.of(context.peer())
        await super().Watch(request, context)
