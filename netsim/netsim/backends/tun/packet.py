"""Just enough of IPv4 and TCP: to tell flows apart, and to forge the packets that end them.

Pure functions over bytes. Only packets without IP options are looked at, as no kernel sends others for TCP.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

FIN, SYN, RST, ACK = 0x01, 0x02, 0x04, 0x10

FlowKey = bytes  # source address, destination address, source port, destination port: 12 bytes


class TcpSegment(NamedTuple):
    """The parts of a TCP packet that matter here."""

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
    total = struct.unpack_from("!H", packet, 2)[0]
    sequence, acknowledgement, offset, flags = struct.unpack_from("!IIBB", packet, 24)
    return TcpSegment(packet[12:24], sequence, acknowledgement, flags, total - 20 - (offset >> 4) * 4)


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
    """The Internet checksum (RFC 1071)."""
    if len(data) % 2:
        data += b"\0"
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def later(a: int, b: int) -> int:
    """The later of two sequence numbers, modulo 2**32."""
    return a if (a - b) & 0xFFFFFFFF < 0x80000000 else b
