"""The Serve deployment: a replica's process, in which a whole server runs. Ray starts it, asks how it is, and ends it.

State: the server on its own thread. Invariant: clients speak to the server itself; Serve carries no answer.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from moa_shared.errors import MoaError, UnavailableError
from ray import serve
from ray.exceptions import RayError, RayTaskError

from moa_server.access.keys import VARIABLE, Gate, parse_keys
from moa_server.addresses import reachable_address
from moa_server.cluster.rules import LOAD, NAMESPACE, Consumption, FleetView, Report
from moa_server.cluster.server_thread import ServerThread
from moa_server.loading import load_host
from moa_server.logs import LogProgress, configure_logs
from moa_server.service.host import Host
from moa_server.settings import ServerSettings

TELL_SECONDS = 2.0  # of a coordinator that is far or busy; away for longer, it is called again at the next beat
MORE_PORTS = 64  # replicas of one machine take the ports that follow on the first one's


class Replica:
    """One replica.

    `kv_share`: of the memory that the server would take for keys and values, where the settings do not say how much.
    """

    def __init__(self, settings: ServerSettings, fleet: str, threads: int, kv_share: float) -> None:
        os.environ.pop(VARIABLE, None)  # keys come with the configuration, as hashes
        configure_logs("json", settings.log_level)
        self._gate = Gate()
        self._settings = replace(settings, threads=settings.threads or threads)
        self._fleet = fleet
        self._kv_share = kv_share
        self._server: ServerThread | None = None

    async def reconfigure(self, config: Mapping[str, Any]) -> None:
        """Takes keys in; the first time the server starts. `config`: "keys": the file of keys as text; empty: none."""
        if keys := str(config["keys"]):
            self._gate.book, self._gate.wants_keys = parse_keys(keys, Path("(of the fleet)")), True
        if self._server is None:
            port = self._settings.port
            self._server = ServerThread(
                self._load,
                serve.get_replica_context().replica_tag,
                reachable_address(ray.util.get_node_ip_address()),
                range(port, min(port + MORE_PORTS, 65536)) if port else [0],
                self._tell,
            )
            await asyncio.to_thread(self._server.start)

    def _load(self) -> Host:
        host = load_host(self._settings, LogProgress())
        host.admission.gate = self._gate
        if not self._settings.kv_bytes:
            pool = host.services.pool
            pool.budget = round(pool.budget * self._kv_share)
        return host

    def check_health(self) -> None:
        """Raises UnavailableError if the server hangs: Ray then starts another replica in its place."""
        if self._server is not None and self._server.hangs:
            raise UnavailableError("The server's model does not answer.")

    def record_autoscaling_stats(self) -> dict[str, float]:
        report = self._server.newest if self._server is not None else None
        return {LOAD: report.load} if report is not None else {}

    async def __del__(self) -> None:
        """Ray ends this replica: running answers may end, and clients are told where to continue."""
        if self._server is not None:
            await asyncio.to_thread(self._server.end, self._settings.grace_seconds)
            coordinator = await self._coordinator()
            await asyncio.wait_for(coordinator.leave.remote(serve.get_replica_context().replica_tag), TELL_SECONDS)

    async def _tell(self, report: Report, taken: Mapping[str, Consumption]) -> FleetView:
        try:
            coordinator = await self._coordinator()
            told: FleetView = await asyncio.wait_for(coordinator.beat.remote(report, taken), TELL_SECONDS)
        except (RayError, TimeoutError, ValueError) as error:
            if isinstance(error, RayTaskError) and isinstance(error.cause, MoaError):
                raise error.cause from None
            raise UnavailableError(f"{type(error).__name__} of the coordinator {self._fleet}.") from None
        return told

    async def _coordinator(self) -> Any:
        """Looks the actor up once; Ray brings it back under the same name."""
        if not hasattr(self, "_actor"):
            self._actor = await asyncio.to_thread(ray.get_actor, self._fleet, NAMESPACE)
        return self._actor
