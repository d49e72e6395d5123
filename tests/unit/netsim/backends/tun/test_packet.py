"""Packets: forged ones are valid, and read back."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st
from netsim.backends.tun.packet import ACK, FIN, SYN, checksum, forge, is_tcp, later, parse, payload_bytes, reverse

keys = st.binary(min_size=12, max_size=12)
numbers = st.integers(0, 2**32 - 1)


@given(key=keys, sequence=numbers, acknowledgement=numbers, flags=st.integers(0, 255))
def test_a_forged_packet_reads_back_and_its_checksums_hold(
    key: bytes, sequence: int, acknowledgement: int, flags: int
) -> None:
    packet = forge(key, sequence, acknowledgement, flags)
    assert is_tcp(packet)
    assert parse(packet) == (key, sequence, acknowledgement, flags, 0)
    assert payload_bytes(packet) == 0
    # A checksum over data that holds its own checksum is zero (RFC 1071).
    assert checksum(packet[:20]) == 0
    assert checksum(packet[12:20] + struct.pack("!BBH", 0, 6, 20) + packet[20:]) == 0


def test_a_known_checksum() -> None:
    header = bytes.fromhex("45000073000040004011 0000 c0a80001c0a800c7".replace(" ", ""))
    assert checksum(header) == 0xB861


@given(keys)
def test_reversing_twice(key: bytes) -> None:
    assert reverse(reverse(key)) == key
    assert reverse(key)[0:4] == key[4:8]
    assert reverse(key)[8:10] == key[10:12]


def test_syn_and_fin_count_as_a_byte() -> None:
    assert parse(forge(bytes(12), 10, 0, SYN)).next_sequence == 11
    assert parse(forge(bytes(12), 2**32 - 1, 0, FIN | ACK)).next_sequence == 0
    assert parse(forge(bytes(12), 10, 0, ACK)).next_sequence == 10


def test_other_packets_are_told_apart() -> None:
    packet = forge(bytes(12), 1, 2, ACK)
    assert not is_tcp(packet[:30])
    assert not is_tcp(b"\x46" + packet[1:])  # IP options
    assert not is_tcp(packet[:9] + b"\x11" + packet[10:])  # UDP
    assert not is_tcp(packet[:6] + b"\x00\x10" + packet[8:])  # a later fragment


def test_sequence_numbers_wrap() -> None:
    assert later(5, 3) == 5
    assert later(2, 2**32 - 5) == 2
