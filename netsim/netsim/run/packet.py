"""Just enough of IPv4 and TCP: to tell flows apart, and to forge the packets that end them.

Pure functions over bytes. Only packets without IP options are looked at, as no kernel sends others for TCP.
"""

import struct
from typing import NamedTuple

from netsim.core.link import Direction

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10

FlowKey = bytes  # source address, destination address, source port, destination port: 12 bytes


class TcpSegment(NamedTuple):
    key: FlowKey
    sequence: int
    acknowledgement: int
    flags: int
    payload_bytes: int

    @property
    def next_sequence(self) -> int:
        """The sequence number after this packet."""
        length = self.payload_bytes + bool(self.flags & SYN) + bool(self.flags & FIN)
        return (self.sequence + length) & 0xFFFFFFFF


def is_tcp(packet: bytes) -> bool:
    """True for an unfragmented IPv4 packet of TCP without IP options."""
    return len(packet) >= 40 and packet[0] == 0x45 and packet[9] == 6 and not packet[6] & 0x3F and packet[7] == 0


def parse(packet: bytes) -> TcpSegment:
    """Reads a packet for which `is_tcp` holds."""
    sequence, acknowledgement, _, flags = struct.unpack_from("!IIBB", packet, 24)
    return TcpSegment(packet[12:24], sequence, acknowledgement, flags, payload_bytes(packet))


def payload_bytes(packet: bytes) -> int:
    """Payload of a packet for which `is_tcp` holds."""
    return (packet[2] << 8 | packet[3]) - 20 - (packet[32] >> 4) * 4


def reverse(key: FlowKey) -> FlowKey:
    """The same flow seen from the other end."""
    return key[4:8] + key[0:4] + key[10:12] + key[8:10]


def forge(key: FlowKey, sequence: int, acknowledgement: int, flags: int) -> bytes:
    """A TCP packet without payload in the flow `key`."""
    tcp = key[8:12] + struct.pack("!IIBBHHH", sequence, acknowledgement, 5 << 4, flags, 0, 0, 0)
    pseudo = key[0:8] + struct.pack("!BBH", 0, 6, len(tcp))
    tcp = tcp[:16] + struct.pack("!H", checksum(pseudo + tcp)) + tcp[18:]
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, 64, 6, 0) + key[0:8]
    return header[:10] + struct.pack("!H", checksum(header)) + header[12:] + tcp


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def later(a: int, b: int) -> int:
    """The later of two sequence numbers, modulo 2**32."""
    return a if (a - b) & 0xFFFFFFFF < 0x80000000 else b


Forged = tuple[Direction, bytes]  # a packet to deliver at the far end of a direction


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
        last = self._last[direction]
        last[packet[12:24]] = packet
        if len(last) > 10_000:  # the oldest is forgotten: it can no longer be reset, nothing else
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
        forged: list[Forged] = []
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
            forged.append((Direction.UP, forge(key, to_server, to_client, flag | ACK)))
            forged.append((Direction.DOWN, forge(back, to_client, to_server, flag | ACK)))
            self._ended[key] = self._ended[back] = flag
        return len(flows), forged

    def intercept(self, direction: Direction, packet: bytes) -> tuple[bool, list[Forged]]:
        """Whether the packet may enter the link, and what is answered if not."""
        segment = parse(packet)
        if segment.flags & SYN and not segment.flags & ACK:
            if self.refusing and direction is Direction.UP:
                answer = forge(reverse(segment.key), 0, segment.next_sequence, RST | ACK)
                return False, [(Direction.DOWN, answer)]
            # A new connection on the same ports.
            self._ended.pop(segment.key, None)
            self._ended.pop(reverse(segment.key), None)
            return True, []
        flag = self._ended.get(segment.key)
        if flag is None:
            return True, []
        if segment.flags & RST or (flag == FIN and segment.next_sequence == segment.sequence):
            return False, []  # the side has understood
        back = Direction.DOWN if direction is Direction.UP else Direction.UP
        return False, [(back, forge(reverse(segment.key), segment.acknowledgement, 0, RST))]

    def ended(self, packet: bytes) -> bool:
        """True if the packet belongs to a flow that was ended while it was under way."""
        return packet[12:24] in self._ended
