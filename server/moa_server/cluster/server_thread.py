"""A whole server on a thread of its own, with its own event loop, inside another program's process.

State: the server once it listens, and its newest report. Invariants: `start` returns when it listens and the fleet has
taken it in, or raises; it reports to the fleet once a second, and continues with what it knows if there is no answer.
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future

import structlog
from moa_shared.errors import ConfigError, UnavailableError
from moa_shared.programs.run_loop import make_runner

from moa_server.addresses import check_address, host_port
from moa_server.app import SWITCH_SECONDS, RunningServer, start
from moa_server.cluster.rules import Consumption, FleetView, Report, SharedBuckets, State
from moa_server.observing import oldest_wait, sessions_by_state
from moa_server.service.host import Host

log = structlog.get_logger()

BEAT_SECONDS = 1.0
ANY_ADDRESS = ("0.0.0.0", "::", "")
Tell = Callable[[Report, Mapping[str, Consumption]], Awaitable[FleetView]]


class ServerThread:
    """Serves a host.

    Args:
        node: the address of this machine, by which clients reach a server that listens on all.
        ports: to try, one after the other; 0: any free one.
        tell: the fleet how this replica is. Raises UnavailableError: no answer; MismatchError: it is not wanted.
    """

    def __init__(self, load: Callable[[], Host], replica: str, node: str, ports: Sequence[int], tell: Tell) -> None:
        self.newest: Report | None = None
        self._load = load
        self._replica = replica
        self._node = node
        self._ports = ports
        self._tell = tell
        self._others = 0
        self._quotas = SharedBuckets(time.monotonic, lambda: 1 + self._others)
        self._started: Future[RunningServer] = Future()
        self._beaten_at = 0.0
        self._thread = threading.Thread(target=self._run, name="moa-server", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._started.result()

    @property
    def hangs(self) -> bool:
        if not self._is_running:
            return True
        host = self._started.result().host
        return host.lifecycle.hangs or time.monotonic() - self._beaten_at > host.services.settings.hang_seconds

    def end(self, grace_seconds: float) -> None:
        """Drains, then closes; clients are told which servers continue. Does nothing where nothing listens."""
        if self._is_running:
            asyncio.run_coroutine_threadsafe(self._drain(grace_seconds), self._loop).result()
            self._thread.join()

    @property
    def _is_running(self) -> bool:
        return self._thread.is_alive() and self._started.done() and self._started.exception() is None

    def _run(self) -> None:
        try:
            with make_runner() as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)  # `start` waits for it and raises it

    async def _serve(self) -> None:
        sys.setswitchinterval(SWITCH_SECONDS)
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        host = self._load()
        host.admission.rates.buckets = self._quotas
        running = await self._listen(host)
        try:
            await self._beat(running)
            self._started.set_result(running)
            while not self._ended.is_set():
                try:
                    await asyncio.wait_for(self._ended.wait(), BEAT_SECONDS)
                except TimeoutError:
                    await self._beat(running)
        finally:
            await running.close()

    async def _listen(self, host: Host) -> RunningServer:
        refusal = ConfigError("There is no port to listen on.")
        for port in self._ports:
            try:
                check_address(host.services.settings.host, port)
                running = await start(host, port)
            except ConfigError as error:
                refusal = error
            else:
                log.info("serving", target=host.services.served.identity.target_id, address=self._address(running))
                return running
        raise refusal

    async def _drain(self, grace_seconds: float) -> None:
        running = self._started.result()
        log.info("draining", sessions=len(running.host.services.registry))
        await self._beat(running)  # clients are told of those, too, that have come since the last one
        draining = asyncio.ensure_future(running.drain(grace_seconds))
        await asyncio.sleep(0)  # it drains from here on, as the beat says
        await self._beat(running)
        await draining
        self._ended.set()

    async def _beat(self, running: RunningServer) -> None:
        """Tells how this replica is, and takes in who else is there."""
        self.newest, self._beaten_at = self._report(running), time.monotonic()
        try:
            told = await self._tell(self.newest, self._quotas.taken())
        except UnavailableError as error:
            log.warning("the fleet does not answer; what was known stays", reason=error.message)
            return
        self._others = len(told.others)
        running.host.lifecycle.fleet.update(told.others)
        self._quotas.lease(told.leases)

    def _report(self, running: RunningServer) -> Report:
        host, registry = running.host, running.host.services.registry
        served, lifecycle = host.services.served, host.lifecycle
        identity = served.identity
        return Report(
            replica=self._replica,
            address=self._address(running),
            model=identity.target_id,
            fingerprint=(identity.target_fingerprint + identity.tokenizer_hash).hex(),
            execution=served.execution.level,
            state=State.DRAINS if lifecycle.draining else State.HANGS if lifecycle.hangs else State.SERVES,
            load=round(host.load, 3),
            kv_used=round(host.services.pool.taken, 3),
            queue_seconds=round(oldest_wait(registry), 3),
            sessions=len(registry),
            answering=sessions_by_state(registry)["answering"],
            process=os.getpid(),
            node=self._node,
        )

    def _address(self, running: RunningServer) -> str:
        host = running.host.services.settings.host
        return host_port(self._node if host in ANY_ADDRESS else host, running.port)
