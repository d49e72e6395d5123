from __future__ import annotations

from itertools import count
from unittest.mock import create_autospec

import pytest
from moa_server.registry import SessionRegistry
from moa_server.session import Session
from moa_server.slot import Listener, Slot
from moa_server.stepper import Holdings
from moa_shared.errors import OverloadedError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_registry(clock: Clock, limit: int = 2, detached_seconds: float = 10.0) -> SessionRegistry:
    numbers = count()
    return SessionRegistry(
        limit,
        detached_seconds,
        lambda token: Slot(token, create_autospec(Session), create_autospec(Holdings)),
        lambda size: next(numbers).to_bytes(size, "big"),
        clock,
    )


def test_a_session_is_found_by_its_token(clock: Clock) -> None:
    registry = make_registry(clock)
    slot = registry.admit()
    assert registry.find(slot.token) is slot
    assert registry.find(b"another") is None
    registry.close(slot)
    assert registry.find(slot.token) is None
    assert slot.closed


def test_over_the_limit_nobody_attached_is_thrown_out(clock: Clock) -> None:
    registry = make_registry(clock)
    slots = [registry.admit(), registry.admit()]
    with pytest.raises(OverloadedError, match="holds 2 sessions"):
        registry.admit()
    assert registry.slots == tuple(slots)


def test_the_session_detached_first_makes_room(clock: Clock) -> None:
    registry = make_registry(clock)
    first, second = registry.admit(), registry.admit()
    registry.detach(second)
    clock.now = 1
    registry.detach(first)
    third = registry.admit()
    assert second.closed
    assert registry.slots == (first, third)


def test_a_session_that_was_resumed_is_not_dropped(clock: Clock) -> None:
    registry = make_registry(clock)
    slot = registry.admit()
    registry.detach(slot)
    registry.attach(slot)
    clock.now = 100
    assert registry.expire() == 0
    assert registry.detached == 0


def test_detached_sessions_expire(clock: Clock) -> None:
    registry = make_registry(clock)
    first, second = registry.admit(), registry.admit()
    registry.detach(first)
    clock.now = 5
    registry.detach(second)
    clock.now = 9.9
    assert registry.expire() == 0
    clock.now = 10
    assert registry.expire() == 1
    assert (first.closed, second.closed) == (True, False)
    clock.now = 15
    registry.admit()
    assert second.closed
    assert len(registry) == 1


def test_without_a_time_a_detached_session_is_freed_at_once(clock: Clock) -> None:
    registry = make_registry(clock, detached_seconds=0)
    slot = registry.admit()
    slot.listener = create_autospec(Listener, instance=True)
    registry.detach(slot)
    assert slot.closed
    assert slot.listener is None
    assert len(registry) == 0


def test_a_closed_session_is_not_kept(clock: Clock) -> None:
    registry = make_registry(clock)
    slot = registry.admit()
    registry.close(slot)
    registry.detach(slot)
    assert registry.detached == 0
