"""The packet backend: reads IP packets from one device, asks the link model, writes them to the other when due.

Owns the namespaces, a queue of packets a direction, and the process that forwards from the server's namespace to the
upstream. Release times never go back within a direction, so a queue and one timer each are enough.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

from netsim.backends import Backend
from netsim.backends.namespaces import CLIENT_ADDRESS, SERVER_ADDRESS, NamespacePair, clean_leftovers, socket_inside
from netsim.backends.packet import FIN, RST, FlowTable, Forged, is_tcp, payload_bytes
from netsim.core.link import Direction, Release
from netsim.errors import UsageError
from netsim.profiles import Scenario
from netsim.recorder import RunRecorder
from netsim.run.control import environment
from netsim.run.loop import Address, Loop

READ_BATCH = 32  # packets a turn: enough to keep up, few enough not to make a due release wait (0.2 ms)


class TunBackend(Backend):
    name = "tun"

    def __init__(
        self, loop: Loop, scenario: Scenario, recorder: RunRecorder, port: int, upstream: Address | None = None
    ) -> None:
        super().__init__(loop, scenario, recorder)
        self.port = port
        self.leftovers = clean_leftovers()
        self.namespaces = NamespacePair(scenario.profile.congestion, port)
        # What to put before a command to run it at the client's or the server's end.
        self.command_prefix = ("ip", "netns", "exec", self.namespaces.client)
        self.server_prefix = ("ip", "netns", "exec", self.namespaces.server)
        self._congestion = scenario.profile.congestion
        self._flows = FlowTable()
        self._queues: dict[Direction, deque[tuple[float, bytes]]] = {direction: deque() for direction in Direction}
        self._armed = dict.fromkeys(Direction, False)  # whether a timer is set
        self._entries = {Direction.UP: self.namespaces.client_fd, Direction.DOWN: self.namespaces.server_fd}
        self._exits = {Direction.UP: self.namespaces.server_fd, Direction.DOWN: self.namespaces.client_fd}
        self._forwarder: subprocess.Popen[bytes] | None = None
        self._upstream = upstream
        try:
            if upstream is not None:
                self._forward(upstream)
        except BaseException:
            self.close()
            raise
        for direction in Direction:
            loop.read(self._entries[direction], lambda direction=direction: self._read(direction))  # type: ignore[misc]

    def _forward(self, upstream: Address) -> None:
        listener = socket_inside(self.namespaces.server)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("0.0.0.0", self.port))
            listener.listen(128)
        except OSError as error:
            listener.close()
            raise UsageError(
                f"Port {self.port} cannot be bound in the server's namespace: {error.strerror}."
            ) from error
        fd = listener.fileno()
        self._forwarder = subprocess.Popen(
            [sys.executable, "-P", "-m", "netsim.backends.proxy", str(fd), str(upstream)],
            pass_fds=[fd],
            stdin=subprocess.PIPE,  # closes when we end, however we end: the forwarder then ends too
            stdout=subprocess.PIPE,
            env=environment(),
        )
        listener.close()
        if self._forwarder.stdout is not None and not self._forwarder.stdout.readline():
            raise UsageError(f"Connections cannot be forwarded to {upstream}: the forwarder ended at its start.")

    def _read(self, direction: Direction) -> None:
        fd, link, queue, flows = self._entries[direction], self.links[direction], self._queues[direction], self._flows
        records = self.recorder.records_packets
        for _ in range(READ_BATCH):
            try:
                packet = os.read(fd, 65536)
            except BlockingIOError:
                return
            if is_tcp(packet):
                if flows.watching:
                    enters, answers = flows.intercept(direction, packet)
                    self._deliver(answers)
                    if not enters:
                        continue
                flows.note(direction, packet)
                if records and direction is Direction.UP and (length := payload_bytes(packet)):
                    # A connection is known by the client's port.
                    self.recorder.question(int.from_bytes(packet[20:22], "big"), self.loop.time(), packet[-length:])
            verdict = link.admit(len(packet), self.loop.time())
            if isinstance(verdict, Release):
                queue.append((verdict.t, packet))
                if not self._armed[direction]:
                    self._arm(direction)

    def _arm(self, direction: Direction) -> None:
        self._armed[direction] = True
        self.loop.call_at(self._queues[direction][0][0], lambda: self._release(direction))

    def _release(self, direction: Direction) -> None:
        queue, fd, lateness = self._queues[direction], self._exits[direction], self.recorder.lateness
        flows = self._flows
        self._armed[direction] = False
        records, now = self.recorder.records_packets, self.loop.time()
        while queue:
            due, packet = queue[0]
            if due > now:
                now = self.loop.time()
                if due > now:
                    self._arm(direction)
                    return
            queue.popleft()
            if flows.watching and is_tcp(packet) and flows.ended(packet):
                continue
            lateness.add(now - due)
            os.write(fd, packet)
            if records and direction is Direction.DOWN and is_tcp(packet) and payload_bytes(packet):
                self.recorder.answer(int.from_bytes(packet[22:24], "big"), now)

    def _deliver(self, forged: Sequence[Forged]) -> None:
        for direction, packet in forged:
            os.write(self._exits[direction], packet)

    def endpoint(self) -> str:
        return f"{SERVER_ADDRESS}:{self.port}"

    def facts(self) -> dict[str, Any]:
        return {
            "congestion_control": self._congestion,
            "namespaces": {"client": self.namespaces.client, "server": self.namespaces.server},
            "addresses": {"client": CLIENT_ADDRESS, "server": SERVER_ADDRESS},
            "upstream": None if self._upstream is None else str(self._upstream),
        }

    def connections(self) -> int:
        return len(self._flows.open_flows())

    def on_cut(self, direction: Direction, t: float) -> None:
        self._queues[direction].clear()

    def reset(self) -> int:
        return self._end(RST)

    def fin(self) -> int:
        return self._end(FIN)

    def _end(self, flag: int) -> int:
        count, forged = self._flows.end_all(flag)
        self._deliver(forged)
        return count

    def refuse(self, refusing: bool) -> None:
        self._flows.refusing = refusing

    def close(self) -> None:
        if self._forwarder is not None:
            with self._forwarder:
                self._forwarder.terminate()
            self._forwarder = None
        for fd in self._entries.values():
            self.loop.read(fd, None)
        self.namespaces.close()
