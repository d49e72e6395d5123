"""Links by name and from recordings, and bytes through a real one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_bench.harness.links import (
    LINKS,
    EmulatedLink,
    Outage,
    find_links,
    linked,
    outages,
    recorded_link,
    recording_of,
    served_from,
)
from moa_shared.errors import ConfigError
from netsim.traces import Row, Trace

from tests.support.messages import raises
from tests.unit.moa_bench.conftest import dial


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that sends back what it gets, for any number of connections."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                return

    def run() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def test_links_are_found_by_name() -> None:
    assert [link.name for link in find_links(("4g", "RTT 0"))] == ["4G", "RTT 0"]
    with raises(
        ConfigError,
        snapshot(
            "There is no link '6g'. There are RTT 0, wired, 5G, 4G, RTT 50 ms, RTT 100 ms, RTT 150 ms, RTT 300 ms."
        ),
    ):
        find_links(("6g",))


def test_a_recording_begins_where_it_is_told_to(echo: str, tmp_path: Path) -> None:
    ride = tmp_path / "ride.csv"
    ride.write_text("t_s,down_mbps,up_mbps\n0,8,8\n60,0,0\n61,8,8\n")
    link = EmulatedLink("ride", 1.0, recording=ride, start_s=60.0)
    began = time.perf_counter()
    with linked(link, echo) as running, dial(running.address) as connection:
        connection.sendall(b"question")
        assert connection.recv(100) == b"question"
        assert time.perf_counter() - began >= 1.0  # nothing passes in the recording's second at 60 s


def test_no_link_is_the_server_itself(echo: str) -> None:
    with linked(LINKS[0], echo) as link:
        assert link.address == echo
        with raises(ConfigError, snapshot("A loopback connection cannot be cut. Choose an emulated link.")):
            link.cut(1.0)


@pytest.mark.parametrize("link", [EmulatedLink("RTT 40 ms", 20.0), EmulatedLink("5G", 10.0, 10.0)])
def test_bytes_pass_and_wait(echo: str, link: EmulatedLink) -> None:
    with linked(link, echo, seed=1) as running, dial(running.address) as connection:
        began = time.perf_counter()
        for _ in range(3):
            connection.sendall(b"question")
            assert connection.recv(100) == b"question"
        if not link.deviation_ms:
            assert time.perf_counter() - began >= 3 * link.rtt_ms / 1e3


def test_a_cut_holds_everything_up(echo: str) -> None:
    with linked(EmulatedLink("RTT 2 ms", 1.0), echo) as running, dial(running.address) as connection:
        connection.sendall(b"1")
        assert connection.recv(10) == b"1"
        running.cut(0.4)
        began = time.perf_counter()
        connection.sendall(b"2")
        assert connection.recv(10) == b"2"
        assert time.perf_counter() - began >= 0.3
        running.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(10)


def test_a_recorded_link_has_the_delay_of_another_and_no_rate_of_its_own(tmp_path: Path) -> None:
    ride = tmp_path / "ride.csv"
    ride.write_text("t_s,down_mbps\n0,8\n2,0\n3,8\n")
    link = recorded_link(f"4g={ride}")
    assert link == EmulatedLink("4G, ride", 21.0, 19.0, recording=ride)
    assert recording_of(link).duration_s == 4.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("4G", snapshot("--trace 4G is not LINK=FILE. Write, for example, --trace 4G=drive.csv.")),
        (
            "RTT 0=x",
            snapshot(
                "There is no link 'RTT 0' to take the delay from. There are wired, 5G, 4G, RTT 50 ms, RTT 100 ms, RTT 150 ms, RTT 300 ms."
            ),
        ),
    ],
)
def test_a_recorded_link_needs_a_delay_and_a_file(given: str, message: str) -> None:
    with raises(ConfigError, message):
        recorded_link(given)


def test_a_question_is_asked_where_something_comes() -> None:
    trace = Trace((Row(0.0, 8.0), Row(2.0, 0.0), Row(4.0, 0.0), Row(5.0, 8.0), Row(8.0, 0.0)))
    assert [served_from(trace, share) for share in (0.0, 1 / 11, 3 / 11, 6 / 11)] == [0.0, 1.0, 5.0, 6.0]
    assert served_from(trace, 9 / 11) == 9.0  # nothing comes any more


def test_rows_without_rate_are_an_outage_together() -> None:
    rates = [8.0, 8.0, 8.0, 0.0, 0.0, 4.0, 0.0]
    trace = Trace(tuple(Row(float(second), rate) for second, rate in enumerate(rates)))
    assert outages(trace) == [Outage(3.0, 2.0), Outage(6.0, 1.0)]


def test_a_moment_is_none_and_neither_is_the_begin_of_a_recording() -> None:
    trace = Trace((Row(0.0, 0.0), Row(1.0, 8.0), Row(3.0, 0.0), Row(3.4, 8.0)))
    assert outages(trace) == []


def test_a_rate_that_the_recording_leaves_out_is_the_links_own() -> None:
    assert outages(Trace((Row(0.0, 8.0), Row(3.0), Row(5.0, 8.0)))) == []
