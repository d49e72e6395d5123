"""The packet backend: reads IP packets from one device, asks the link model, writes them to the other when they are
due.

Owns the namespaces, a queue of packets a direction, and the process that forwards from the server's namespace to the
upstream. Release times never go back within a direction, so a queue and one timer each are enough.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import deque
from typing import Any

from netsim.backends.tun.namespaces import (
    CLIENT_ADDRESS,
    SERVER_ADDRESS,
    NamespacePair,
    clean_leftovers,
    command_prefix,
    socket_inside,
)
from netsim.backends.tun.packet import FIN, RST, FlowKey, FlowTable, Forged, is_tcp, payload_bytes, reverse
from netsim.core.link import Direction, LinkModel, Release
from netsim.errors import AddressError
from netsim.output.recorder import BOTH_WAYS, RunRecorder
from netsim.profile.scenario import Scenario
from netsim.run.address import Address
from netsim.run.loop import Loop
from netsim.run.process import environment

READ_BATCH = 32  # packets a turn: enough to keep up, few enough not to make a due release wait (0.2 ms)
PACKET_BYTES = 65536


class TunBackend:
    """A link between two namespaces."""

    name = "tun"

    def __init__(
        self, loop: Loop, scenario: Scenario, recorder: RunRecorder, port: int, upstream: Address | None = None
    ) -> None:
        self.loop = loop
        self.recorder = recorder
        self.port = port
        self.links: dict[Direction, LinkModel] = scenario.models(recorder.packet)
        self.leftovers = clean_leftovers()
        self.namespaces = NamespacePair(scenario.profile.congestion, port)
        self._congestion = scenario.profile.congestion
        self._flows = FlowTable()
        self._asked: dict[FlowKey, float] = {}
        self._both_ways: set[FlowKey] = set()  # flows without requests
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
        """Starts the process that forwards connections from the server's namespace to the upstream."""
        listener = socket_inside(self.namespaces.server)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("0.0.0.0", self.port))
            listener.listen(128)
        except OSError as error:
            listener.close()
            raise AddressError(
                f"Port {self.port} cannot be bound in the server's namespace: {error.strerror}."
            ) from error
        fd = listener.fileno()
        self._forwarder = subprocess.Popen(
            [sys.executable, "-P", "-m", "netsim.backends.tun.packet", str(fd), str(upstream)],
            pass_fds=[fd],
            stdin=subprocess.PIPE,  # closes when we end, however we end: the forwarder then ends too
            stdout=subprocess.PIPE,
            env=environment(),
        )
        listener.close()
        if self._forwarder.stdout is not None and not self._forwarder.stdout.readline():
            raise AddressError(f"Connections cannot be forwarded to {upstream}: the forwarder ended at its start.")

    def _read(self, direction: Direction) -> None:
        fd, link, queue, flows = self._entries[direction], self.links[direction], self._queues[direction], self._flows
        records = self.recorder.records_packets
        for _ in range(READ_BATCH):
            try:
                packet = os.read(fd, PACKET_BYTES)
            except BlockingIOError:
                return
            if is_tcp(packet):
                if flows.watching:
                    enters, answers = flows.intercept(direction, packet)
                    for answer in answers:
                        self._deliver(answer)
                    if not enters:
                        continue
                flows.note(direction, packet)
                if records and direction is Direction.UP and (length := payload_bytes(packet)):
                    self._on_question(packet[12:24], packet[-length:])
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
        flows, asked = self._flows, self._asked
        self._armed[direction] = False
        now = self.loop.time()
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
            if asked and direction is Direction.DOWN and is_tcp(packet) and payload_bytes(packet):
                self._on_answer(reverse(packet[12:24]))

    def _on_question(self, key: FlowKey, payload: bytes) -> None:
        if payload.startswith(BOTH_WAYS):
            self._both_ways.add(key)
        if key not in self._both_ways:
            self._asked.setdefault(key, self.loop.time())

    def _on_answer(self, key: FlowKey) -> None:
        asked_at = self._asked.pop(key, None)
        if asked_at is not None:
            connection = int.from_bytes(key[8:10], "big")  # the client's port
            latency_ms = round((self.loop.time() - asked_at) * 1e3, 3)
            self.recorder.event(asked_at, "request", connection=connection, latency_ms=latency_ms)

    def _deliver(self, forged: Forged) -> None:
        os.write(self._exits[forged.direction], forged.packet)

    @property
    def command_prefix(self) -> tuple[str, ...]:
        """Runs a command at the client's end."""
        return command_prefix(self.namespaces.client)

    @property
    def server_prefix(self) -> tuple[str, ...]:
        """Runs a command at the server's end."""
        return command_prefix(self.namespaces.server)

    def endpoint(self) -> str:
        """The server's end, from the client's."""
        return f"{SERVER_ADDRESS}:{self.port}"

    def facts(self) -> dict[str, Any]:
        """What the summary says."""
        return {
            "congestion_control": self._congestion,
            "namespaces": {"client": self.namespaces.client, "server": self.namespaces.server},
            "addresses": {"client": CLIENT_ADDRESS, "server": SERVER_ADDRESS},
            "upstream": None if self._upstream is None else str(self._upstream),
        }

    def connections(self) -> int:
        """Flows that neither side has ended."""
        return len(self._flows.open_flows())

    def on_cut(self, direction: Direction, t: float) -> None:
        """What is under way in that direction is lost."""
        self._queues[direction].clear()

    def reset(self) -> int:
        """Ends every flow with a reset."""
        return self._end(RST)

    def fin(self) -> int:
        """Ends every flow in the orderly way."""
        return self._end(FIN)

    def _end(self, flag: int) -> int:
        count, forged = self._flows.end_all(flag)
        for each in forged:
            self._deliver(each)
        return count

    def refuse(self, refusing: bool) -> None:
        """Refuses new flows with a reset, or lets them through again."""
        self._flows.refusing = refusing

    def close(self) -> None:
        """Removes the namespaces."""
        if self._forwarder is not None:
            self._forwarder.terminate()
            self._forwarder.wait()
            for stream in (self._forwarder.stdin, self._forwarder.stdout):
                if stream is not None:
                    stream.close()
            self._forwarder = None
        for fd in self._entries.values():
            self.loop.read(fd, None)
        self.namespaces.close()
