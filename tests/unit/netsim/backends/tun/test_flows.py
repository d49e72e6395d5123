"""Ending and refusing connections, packet by packet."""

from __future__ import annotations

import pytest
from netsim.backends.tun.packet import ACK, FIN, RST, SYN, FlowTable, Forged, forge, parse, reverse
from netsim.core.link import Direction

KEY = bytes([198, 18, 0, 1, 198, 18, 0, 2, 0x9C, 0x40, 0x1B, 0x58])


def established() -> FlowTable:
    table = FlowTable()
    table.note(Direction.UP, forge(KEY, 1000, 500, ACK))
    table.note(Direction.DOWN, forge(reverse(KEY), 500, 1000, ACK))
    return table


@pytest.mark.parametrize("flag", [RST, FIN])
def test_both_sides_hear_of_the_end_with_the_number_they_expect(flag: int) -> None:
    table = established()
    count, forged = table.end_all(flag)
    assert count == 1
    assert [(each.direction, parse(each.packet)) for each in forged] == [
        (Direction.UP, (KEY, 1000, 500, flag | ACK, 0)),
        (Direction.DOWN, (reverse(KEY), 500, 1000, flag | ACK, 0)),
    ]
    assert table.open_flows() == []
    assert table.end_all(flag) == (0, [])


def test_what_still_comes_on_an_ended_flow_is_answered_with_a_reset() -> None:
    table = established()
    table.end_all(RST)
    assert table.watching
    enters, answers = table.intercept(Direction.UP, forge(KEY, 1000, 777, ACK))
    assert not enters
    [answer] = answers
    assert answer.direction is Direction.DOWN
    assert parse(answer.packet) == (reverse(KEY), 777, 0, RST, 0)
    assert table.ended(forge(KEY, 1, 1, ACK))


def test_a_reset_or_a_plain_acknowledgement_of_the_end_is_swallowed() -> None:
    table = established()
    table.end_all(FIN)
    assert table.intercept(Direction.UP, forge(KEY, 1000, 501, ACK)) == (False, [])
    assert table.intercept(Direction.UP, forge(KEY, 1000, 501, RST)) == (False, [])
    enters, answers = table.intercept(Direction.UP, forge(KEY, 1000, 501, FIN | ACK))
    assert (enters, len(answers)) == (False, 1)


def test_new_flows_are_refused_while_refusing() -> None:
    table = FlowTable()
    assert not table.watching
    table.refusing = True
    enters, answers = table.intercept(Direction.UP, forge(KEY, 41, 0, SYN))
    assert not enters
    assert answers == [Forged(Direction.DOWN, forge(reverse(KEY), 0, 42, RST | ACK))]
    assert table.intercept(Direction.DOWN, forge(reverse(KEY), 41, 0, SYN)) == (True, [])


def test_ports_may_be_used_again() -> None:
    table = established()
    table.end_all(RST)
    assert table.intercept(Direction.UP, forge(KEY, 7, 0, SYN)) == (True, [])
    assert not table.watching


def test_flows_that_a_side_has_ended_are_not_open() -> None:
    table = established()
    assert table.open_flows() == [KEY]
    table.note(Direction.DOWN, forge(reverse(KEY), 500, 1000, FIN | ACK))
    assert table.open_flows() == []
