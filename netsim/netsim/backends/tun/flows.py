"""The connections that pass through the packet backend, and the packets that end or refuse them.

Pure: packets in, packets out. A flow that was ended stays ended: whatever a side still sends in it is answered with a
reset that carries the number it expects, as a router answers for a connection that it no longer knows.
"""

from __future__ import annotations

from typing import NamedTuple

from netsim.backends.tun.packet import ACK, FIN, RST, SYN, FlowKey, forge, later, parse, reverse
from netsim.core.link import Direction

MAX_FLOWS = 10_000  # the oldest is forgotten beyond it; a forgotten one can no longer be reset, nothing else
OTHER = {Direction.UP: Direction.DOWN, Direction.DOWN: Direction.UP}


class Forged(NamedTuple):
    """A packet to deliver at the far end of `direction`."""

    direction: Direction
    packet: bytes


class FlowTable:
    """The flows of a link; owns the last packet of each, by direction, and which were ended."""

    def __init__(self) -> None:
        self.refusing = False
        self._last: dict[Direction, dict[FlowKey, bytes]] = {Direction.UP: {}, Direction.DOWN: {}}
        self._ended: dict[FlowKey, int] = {}  # both keys of a flow; the flags it was ended with

    @property
    def watching(self) -> bool:
        """True if packets must be shown to `intercept`."""
        return self.refusing or bool(self._ended)

    def note(self, direction: Direction, packet: bytes) -> None:
        """A TCP packet entered the link."""
        last = self._last[direction]
        last[packet[12:24]] = packet
        if len(last) > MAX_FLOWS:
            del last[next(iter(last))]

    def open_flows(self) -> list[FlowKey]:
        """Keys, seen from the client, of the flows that neither side has ended."""
        return [
            key
            for key, packet in self._last[Direction.UP].items()
            if key not in self._ended
            and not packet[33] & (RST | FIN)
            and not self._last[Direction.DOWN].get(reverse(key), bytes(40))[33] & (RST | FIN)
        ]

    def end_all(self, flag: int) -> tuple[int, list[Forged]]:
        """Ends every flow with RST or FIN; returns how many, and the packets for both sides."""
        forged = []
        flows = self.open_flows()
        for key in flows:
            back = reverse(key)
            up = parse(self._last[Direction.UP][key])
            down_packet = self._last[Direction.DOWN].get(back)
            if down_packet is None:
                continue  # only a SYN so far: the far side knows nothing of it
            down = parse(down_packet)
            # What each side expects next: what it has acknowledged, or what was last on its way to it.
            to_server = later(down.acknowledgement, up.next_sequence)
            to_client = later(up.acknowledgement, down.next_sequence)
            forged.append(Forged(Direction.UP, forge(key, to_server, to_client, flag | ACK)))
            forged.append(Forged(Direction.DOWN, forge(back, to_client, to_server, flag | ACK)))
            self._ended[key] = self._ended[back] = flag
        return len(flows), forged

    def intercept(self, direction: Direction, packet: bytes) -> tuple[bool, list[Forged]]:
        """Whether the packet may enter the link, and what is answered if not."""
        segment = parse(packet)
        if segment.flags & SYN and not segment.flags & ACK:
            if self.refusing and direction is Direction.UP:
                answer = forge(reverse(segment.key), 0, segment.next_sequence, RST | ACK)
                return False, [Forged(Direction.DOWN, answer)]
            # A new connection on the same ports.
            self._ended.pop(segment.key, None)
            self._ended.pop(reverse(segment.key), None)
            return True, []
        flag = self._ended.get(segment.key)
        if flag is None:
            return True, []
        if segment.flags & RST or (flag == FIN and segment.next_sequence == segment.sequence):
            return False, []  # the side has understood
        return False, [Forged(OTHER[direction], forge(reverse(segment.key), segment.acknowledgement, 0, RST))]

    def ended(self, packet: bytes) -> bool:
        """True if the packet belongs to a flow that was ended while it was under way."""
        return packet[12:24] in self._ended
