"""Packets: forged ones are valid, and read back; ending and refusing connections, packet by packet."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from netsim.core.link import Direction
from netsim.run.packet import ACK, FIN, RST, SYN, FlowTable, checksum, forge, is_tcp, parse, payload_bytes, reverse

KEY = bytes([198, 18, 0, 1, 198, 18, 0, 2, 0x9C, 0x40, 0x1B, 0x58])
keys = st.binary(min_size=12, max_size=12)
numbers = st.integers(0, 2**32 - 1)


@given(key=keys, sequence=numbers, acknowledgement=numbers, flags=st.integers(0, 255))
def test_a_forged_packet_reads_back_and_its_checksums_hold(
    key: bytes, sequence: int, acknowledgement: int, flags: int
) -> None:
    packet = forge(key, sequence, acknowledgement, flags)
    assert is_tcp(packet)
    assert (parse(packet), payload_bytes(packet)) == ((key, sequence, acknowledgement, flags, 0), 0)
    # A checksum over data that holds its own checksum is zero (RFC 1071).
    assert (checksum(packet[:20]), checksum(packet[12:20] + struct.pack("!BBH", 0, 6, 20) + packet[20:])) == (0, 0)
    assert reverse(key) == key[4:8] + key[:4] + key[10:] + key[8:10]


def test_other_packets_are_told_apart() -> None:
    packet = forge(bytes(12), 1, 2, ACK)
    assert not is_tcp(packet[:30])
    assert not is_tcp(b"\x46" + packet[1:])  # IP options
    assert not is_tcp(packet[:9] + b"\x11" + packet[10:])  # UDP
    assert not is_tcp(packet[:6] + b"\x00\x10" + packet[8:])  # a later fragment


@pytest.fixture
def table() -> FlowTable:
    """One established flow."""
    made = FlowTable()
    made.note(Direction.UP, forge(KEY, 1000, 500, ACK))
    made.note(Direction.DOWN, forge(reverse(KEY), 500, 1000, ACK))
    return made


@pytest.mark.parametrize("flag", [RST, FIN])
def test_both_sides_hear_of_the_end_with_the_number_they_expect(table: FlowTable, flag: int) -> None:
    count, forged = table.end_all(flag)
    assert count == 1
    assert [(direction, parse(packet)) for direction, packet in forged] == [
        (Direction.UP, (KEY, 1000, 500, flag | ACK, 0)),
        (Direction.DOWN, (reverse(KEY), 500, 1000, flag | ACK, 0)),
    ]
    assert (table.open_flows(), table.end_all(flag)) == ([], (0, []))


def test_what_still_comes_on_an_ended_flow_is_answered_with_a_reset_or_swallowed(table: FlowTable) -> None:
    table.end_all(FIN)
    assert table.watching
    assert table.ended(forge(KEY, 1, 1, ACK))
    reset = (Direction.DOWN, forge(reverse(KEY), 501, 0, RST))
    for flags, answers in ((FIN | ACK, [reset]), (ACK, []), (RST, [])):  # a plain acknowledgement is of the end
        assert table.intercept(Direction.UP, forge(KEY, 1000, 501, flags)) == (False, answers)
    assert table.intercept(Direction.UP, forge(KEY, 7, 0, SYN)) == (True, [])  # ports may be used again
    assert not table.watching


def test_new_flows_are_refused_while_refusing() -> None:
    table = FlowTable()
    assert not table.watching
    table.refusing = True
    answer = (Direction.DOWN, forge(reverse(KEY), 0, 42, RST | ACK))
    assert table.intercept(Direction.UP, forge(KEY, 41, 0, SYN)) == (False, [answer])
    assert table.intercept(Direction.DOWN, forge(reverse(KEY), 41, 0, SYN)) == (True, [])
