"""Links in real time do what their profile says, over both backends.

Each rule fails with its planted error. A run in which an idle process woke late as well says nothing of the link.
"""

import contextlib
import hashlib
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import fmean, median, quantiles
from typing import Any

import numpy as np
import pytest
from netsim.core.stream import HEADER, MSS
from netsim.recorder import MEDIAN_LIMIT_S, P99_LIMIT_S
from scipy import stats

from tests.support.checked_links import CheckedLink, open_checked_link

# One worker for all of them: two at once would measure each other.
pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.xdist_group("netsim-real-time")]

Pair = tuple[socket.socket, socket.socket]
NO_DELAY = {"delay": {"mean_ms": 0}}
STAMP = struct.Struct("!d")
ATTEMPTS = 3
PROBE = """
import signal, sys, time
late, going = [], True
def end(*_):
    global going
    going = False
signal.signal(signal.SIGTERM, end)
while going:
    due = time.monotonic() + 0.002
    time.sleep(0.002)
    late.append(time.monotonic() - due)
late.sort()
print(late[len(late) // 2] > 0.5e-3 or late[int(len(late) * 0.99)] > 3e-3)
"""  # two cores at a load of 3: a median of 0.09 ms and 2.3 ms at 99 %; with two busy loops more 0.08 and 8.9 ms


@contextmanager
def busy_machine() -> Iterator[Callable[[], bool]]:
    """Watches the machine with an idle process; the call afterwards says whether that woke late."""
    watch = subprocess.Popen([sys.executable, "-c", PROBE], stdout=subprocess.PIPE, text=True)
    said: list[str] = []
    try:
        yield lambda: said == ["True\n"]
    finally:
        watch.send_signal(signal.SIGTERM)
        said.append(watch.communicate()[0])


@contextmanager
def in_thread(target: Callable[..., Any], *arguments: Any) -> Iterator[None]:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    yield
    thread.join()


def stamp(client: socket.socket, count: int, spacing_s: float) -> None:
    """Sends messages that say when they were sent."""
    due = time.monotonic()
    for _ in range(count):
        due += spacing_s
        time.sleep(max(0.0, due - time.monotonic()))
        client.send(STAMP.pack(time.monotonic()))


def stamps(client: socket.socket, server: socket.socket, count: int, spacing_s: float) -> list[tuple[float, float]]:
    """When the messages that arrived were sent, and when they came."""
    seen: list[tuple[float, float]] = []
    server.settimeout(1.0)
    with in_thread(stamp, client, count, spacing_s), contextlib.suppress(TimeoutError):
        while len(seen) < count:
            sent = STAMP.unpack(server.recv(64)[: STAMP.size])[0]
            seen.append((sent, time.monotonic()))
    return seen


def bulk_mbps(client: socket.socket, server: socket.socket, seconds: float) -> float:
    """Payload rate at the server after the first second."""
    end = time.monotonic() + 1.0 + seconds

    def send() -> None:
        client.settimeout(0.2)
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                client.send(bytes(256 * 1024))

    received, start = 0, time.monotonic() + 1.0
    with in_thread(send):
        while (now := time.monotonic()) < end:
            nbytes = len(server.recv(1 << 20))
            received += nbytes if now >= start else 0
    return received * 8e-6 / (now - start)


def echo(server: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := server.recv(4096):
            server.sendall(data)


def ask_ms(client: socket.socket) -> float:
    start = time.monotonic()
    client.sendall(b"x")
    client.recv(1)
    return (time.monotonic() - start) * 1e3


def delays(backend: str, planted: bool) -> bool:
    def ends(link: CheckedLink) -> Pair:
        return link.datagrams() if backend == "tun" else link.pair()

    mean_ms, deviation_ms = 12.0, 9.0
    count = 100 if planted else 300  # such a large error shows in fewer samples
    fields = {"mean_ms": mean_ms + 4.0 * planted, "deviation_ms": deviation_ms, "correlation_ms": 0}
    with open_checked_link(backend, NO_DELAY, 1) as link:
        through = median(came - sent for sent, came in stamps(*ends(link), 50, 0.01))
    with open_checked_link(backend, {"delay": fields}, 1) as link:
        # Draws rarely differ by more than 40 ms, so no packet waits for another.
        values = [(came - sent - through) * 1e3 for sent, came in stamps(*ends(link), count, 0.04)]
    expected = stats.truncnorm(-mean_ms / deviation_ms, np.inf, mean_ms, deviation_ms)
    distance = stats.kstest(values, expected.cdf).statistic
    return len(values) == count and bool(distance < 1.63 / count**0.5)  # 1 % point of Kolmogorov's distribution


def rate(backend: str, planted: bool) -> bool:
    with open_checked_link(backend, {"delay": {"mean_ms": 5}, "rate_mbps": 18.0 if planted else 20.0}, 1) as link:
        seen = bulk_mbps(*link.pair(), 4.0)
    return abs(seen / (20.0 * MSS / (MSS + HEADER)) - 1.0) <= (0.03 if backend == "tun" else 0.05)


def replay(planted: bool) -> bool:
    """Rates of a trace, by the second; a flood of 30 Mbit/s begins two seconds before those that count."""
    rates = [round(random.Random(second).uniform(4.0, 24.0), 1) for second in range(6)]
    rows = "\n".join(f"{i},{value * (0.9 if planted else 1.0)}" for i, value in enumerate([10.0, 10.0, *rates, 10.0]))
    with open_checked_link("tun", NO_DELAY, 1, trace=f"t_s,up_mbps\n{rows}\n") as link:
        client, server = link.datagrams()
        origin = link.origin()
        end = origin + 8.3

        def flood() -> None:
            due = time.monotonic()
            while due < end:
                for _ in range(10):  # fewer wake-ups, and still far less than the queue holds
                    client.send(bytes(1472))
                due += 10 * 1500 * 8e-6 / 30.0
                time.sleep(max(0.0, due - time.monotonic()))

        megabits = [0.0] * 9
        with in_thread(flood), contextlib.suppress(TimeoutError):
            while (now := time.monotonic()) < end:
                megabits[min(int(now - origin), 8)] += (len(server.recv(2048)) + 28) * 8e-6
    return fmean(abs(seen / wanted - 1.0) for seen, wanted in zip(megabits[2:8], rates, strict=True)) <= 0.05


def outage_edges(planted: bool) -> bool:
    start = 1.53 if planted else 1.5
    with open_checked_link("tun", NO_DELAY, 1, events=[f"{start}:blackhole:0.7:up"]) as link:
        ends, origin = link.datagrams(), link.origin()
        sent = sorted(at - origin for at, _ in stamps(*ends, 3000, 0.001))
    gap, before = max((b - a, a) for a, b in pairwise(sent))
    return abs(before - 1.5) <= 0.01 and abs(before + gap - 2.2) <= 0.01


def lateness(backend: str, planted: bool) -> bool:
    """The link's own figures are within its limits, and its flag says so. Planted: it is stopped half of the time."""

    def stutter(pid: int, until: float) -> None:
        while planted and time.monotonic() < until:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.02)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.02)

    fields = {"delay": {"mean_ms": 10, "deviation_ms": 5}, "rate_mbps": 20}
    with open_checked_link(backend, fields, 1) as link:
        ends = link.pair()
        with in_thread(stutter, link.process.process.pid, time.monotonic() + 3.5):
            bulk_mbps(*ends, 3.0)
    seen = link.summary["lateness"]
    is_punctual = seen["median_ms"] < MEDIAN_LIMIT_S * 1e3 and seen["p99_ms"] < P99_LIMIT_S * 1e3
    assert seen["flagged"] is not is_punctual
    return bool(is_punctual)


def single_loss(planted: bool) -> bool:
    """A lost packet costs SRTT + 200 ms. Planted: its first retransmission is lost too."""
    extra, wanted = [], []
    with open_checked_link("tun", {"delay": {"mean_ms": 21.3}}, 1) as link:
        for _ in range(3):
            client, server = link.pair()
            with in_thread(echo, server):
                rtt_ms = median(ask_ms(client) for _ in range(25))
                link.process.send(do="cut", direction="up")
                sent = time.monotonic()
                client.sendall(b"x")
                time.sleep(0.35 if planted else 0.03)
                link.process.send(do="heal")
                client.recv(1)
                extra.append((time.monotonic() - sent) * 1e3 - rtt_ms)
                wanted.append(rtt_ms + 200.0)
                client.close()
    return abs(median(extra) - median(wanted)) <= 25.0


def proxy_against_tun(planted: bool) -> bool:
    """The same traffic over both at once: median and 95 % of requests, and bulk. Planted: 12 ms more delay."""
    fields: dict[str, Any] = {"rate_mbps": 20, "loss": {"model": "bernoulli", "probability": 0.001}}
    seen: dict[str, tuple[float, float, float]] = {}

    def run(backend: str, mean_ms: float) -> None:
        # 4g, its delay forgetting faster than in 50 ms: the same distribution from more independent draws.
        delay = {"mean_ms": mean_ms, "deviation_ms": 19, "correlation_ms": 10}
        with open_checked_link(backend, {**fields, "delay": delay}, 1) as link:
            client, server = link.pair()
            with in_thread(echo, server):
                end = time.monotonic() + 12.0
                latencies = []
                while time.monotonic() < end:
                    latencies.append(ask_ms(client))
                client.shutdown(socket.SHUT_WR)
        with open_checked_link(backend, {**fields, "delay": delay}, 1) as link:
            seen[backend] = median(latencies), quantiles(latencies, n=20)[-1], bulk_mbps(*link.pair(), 12.0)

    with in_thread(run, "tun", 21):
        run("proxy", 33 if planted else 21)
    limits = 0.10, 0.20, 0.25
    return all(abs(p / t - 1.0) <= limit for p, t, limit in zip(seen["proxy"], seen["tun"], limits, strict=True))


ROOT = pytest.mark.root
RULES = [
    pytest.param(lambda planted: delays("tun", planted), id="delays-tun", marks=ROOT),
    pytest.param(lambda planted: delays("proxy", planted), id="delays-proxy"),
    pytest.param(lambda planted: rate("tun", planted), id="rate-tun", marks=ROOT),
    pytest.param(lambda planted: rate("proxy", planted), id="rate-proxy"),
    pytest.param(replay, id="replay", marks=ROOT),
    pytest.param(outage_edges, id="outage-edges", marks=ROOT),
    pytest.param(lambda planted: lateness("tun", planted), id="lateness-tun", marks=ROOT),
    pytest.param(lambda planted: lateness("proxy", planted), id="lateness-proxy"),
    pytest.param(single_loss, id="single-loss", marks=ROOT),
    pytest.param(proxy_against_tun, id="proxy-against-tun", marks=ROOT),
]


@pytest.mark.parametrize("holds", RULES)
def test_links_do_what_they_say(holds: Callable[[bool], bool]) -> None:
    assert not holds(True), "the planted error was not found"
    for _ in range(ATTEMPTS):
        with busy_machine() as was_busy:
            held = holds(False)
        if held:
            return
    assert was_busy()


@pytest.mark.root
@pytest.mark.parametrize("backend", ["tun", "proxy"])
def test_every_byte_arrives_over_a_lossy_link(backend: str) -> None:
    content = random.Random(1).randbytes(2_000_000)
    fields = {
        "delay": {"mean_ms": 5, "deviation_ms": 4},
        "rate_mbps": 50,
        "loss": {"model": "gilbert_elliott", "enter_bad": 0.01, "leave_bad": 0.3, "loss_bad": 0.5},
        "queue_kib": 64,
    }

    def send(client: socket.socket) -> None:
        client.sendall(content)
        client.close()

    with open_checked_link(backend, fields, 1) as link:
        client, server = link.pair()
        with in_thread(send, client):
            received = bytearray()
            while data := server.recv(1 << 20):
                received += data
    assert hashlib.sha256(received).digest() == hashlib.sha256(content).digest()
