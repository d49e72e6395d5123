"""The event loop: timers in order and never early, readers, stop from a signal handler's place; and addresses."""

import math
import os
from collections.abc import Iterator
from functools import partial

import pytest
from netsim.errors import UsageError
from netsim.run.loop import Address, Loop, parse_address


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_timers_fire_in_order_and_never_early_unless_cancelled_or_infinite(loop: Loop) -> None:
    fired: list[tuple[float, float]] = []

    def fire(due: float) -> None:
        fired.append((due, loop.time()))

    times = [loop.time() + offset for offset in (0.02, 0.005, 0.01)]
    for due in times:
        loop.call_at(due, partial(fire, due))
    loop.call_at(times[0], partial(fire, 0.0)).cancel()
    loop.call_at(math.inf, partial(fire, 0.0))
    loop.call_at(loop.time() + 0.03, loop.stop)
    loop.run()
    assert [due for due, _ in fired] == sorted(times)
    assert all(at >= due for due, at in fired)


def test_readers_and_writers_are_called_until_taken_away(loop: Loop) -> None:
    read, write = os.pipe()
    seen: list[bytes] = []

    def on_readable() -> None:
        seen.append(os.read(read, 1))
        if len(seen) == 2:
            loop.read(read, None)
            loop.stop()

    def on_writable() -> None:
        os.write(write, b"abc")
        loop.write(write, None)

    loop.read(read, on_readable)
    loop.write(write, on_writable)
    loop.run()
    assert seen == [b"a", b"b"]
    os.close(read)
    os.close(write)


@pytest.mark.parametrize("is_running", [False, True])
def test_stop_wakes_a_loop_that_waits_and_counts_before_the_run(loop: Loop, is_running: bool) -> None:
    # As from a signal handler, which runs while select waits: the wake-up pipe makes the next wait return.
    loop.call_at(loop.time() + 30.0, lambda: pytest.fail("too late"))
    if is_running:
        loop.call_at(loop.time(), loop.stop)
    else:
        loop.stop()
    loop.run()
    assert loop.time() < 10.0


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [(":6000", "127.0.0.1", 6000), ("localhost:1", "localhost", 1), ("[::1]:50051", "::1", 50051), ("a:0", "a", 0)],
)
def test_forms_of_addresses(text: str, host: str, port: int) -> None:
    assert parse_address(text, "--listen") == Address(host, port)
    assert str(Address("::1", 80)) == "[::1]:80"


@pytest.mark.parametrize("text", ["6000", "host", "host:", "host:port", "host:70000", "host:-1", "fe80::1:50051"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError, match=r"--listen: .* is not an address"):
        parse_address(text, "--listen")
