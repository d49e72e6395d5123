"""Checks in real time, each backend alone: delays, rates, replay, outages, lateness, a lost packet, capacity, bytes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from netsim.core.delay import DelaySpec
from netsim.core.window import HEADER, MSS
from netsim.output.lateness import MEDIAN_LIMIT_S, P99_LIMIT_S
from netsim.validate.check import CheckPlan, LinkCheck, Measured
from netsim.validate.links import CheckedLink, open_checked_link
from netsim.validate.statistics import KS_D_300, kolmogorov_smirnov
from netsim.validate.traffic import bulk_mbps, flood, stamped_delays_ms, ticks

PAYLOAD_SHARE = MSS / (MSS + HEADER)
NO_DELAY = {"delay": {"mean_ms": 0}}
SAMPLES = 300


def real_delays(plan: CheckPlan, backend: str) -> Measured:
    spec = DelaySpec(12.0, 9.0, correlation_ms=0.0)
    mean = spec.mean_ms + (4.0 if plan.planted else 0.0)
    count = 100 if plan.planted else SAMPLES  # such a large error shows in fewer samples
    limit = KS_D_300 * (SAMPLES / count) ** 0.5
    spacing_s = 0.04 if plan.quick else 0.06  # draws rarely differ by more than 40 ms, so no packet waits for another
    fields = {"delay": {"mean_ms": mean, "deviation_ms": spec.deviation_ms, "correlation_ms": 0}}
    with open_checked_link(backend, NO_DELAY, plan.seed) as link:
        through = median(stamped_delays_ms(*_ends(link, backend), 50, 0.01))
    with open_checked_link(backend, fields, plan.seed) as link:
        values = [value - through for value in stamped_delays_ms(*_ends(link, backend), count, spacing_s)]
    distance = kolmogorov_smirnov(values, spec.cdf).distance
    passed = len(values) == count and distance < limit
    return Measured(passed, f"D {distance:.3f} (limit {limit:.3f}) at n = {len(values)}, passthrough {through:.2f} ms")


def _ends(link: CheckedLink, backend: str) -> tuple[socket.socket, socket.socket]:
    return link.datagrams() if backend == "tun" else link.pair()


def rate(plan: CheckPlan, backend: str) -> Measured:
    configured, limit = 20.0, 0.03 if backend == "tun" else 0.05
    fields = {"delay": {"mean_ms": 5}, "rate_mbps": configured * (0.9 if plan.planted else 1.0)}
    with open_checked_link(backend, fields, plan.seed) as link:
        seen = bulk_mbps(*link.pair(), 4.0 if plan.quick else 30.0)
    wanted = configured * PAYLOAD_SHARE
    return Measured(
        abs(seen / wanted - 1.0) <= limit, f"{seen:.2f} of {wanted:.2f} Mbit/s ({seen / wanted - 1.0:+.1%})"
    )


def replay(plan: CheckPlan) -> Measured:
    seconds = 6 if plan.quick else 20
    source = random.Random(plan.seed)
    rates = [round(source.uniform(4.0, 24.0), 1) for _ in range(seconds)]
    scale = 0.9 if plan.planted else 1.0
    lead = 2  # rows before the measured ones, while the traffic starts
    rows = "\n".join(f"{i},{value * scale}" for i, value in enumerate([10.0] * lead + rates + [10.0]))
    with open_checked_link("tun", NO_DELAY, plan.seed, trace=f"t_s,up_mbps\n{rows}\n") as link:
        client, server = link.datagrams()
        origin = link.origin()
        arrivals = flood(client, server, origin + lead + seconds + 0.3 - time.monotonic(), 30.0)
    bits = [0] * seconds
    for t, nbytes in arrivals:
        second = int(t - origin - lead)
        if 0 <= second < seconds and t > origin + lead:
            bits[second] += nbytes * 8
    errors = [abs(seen / 1e6 / wanted - 1.0) for seen, wanted in zip(bits, rates, strict=True)]
    overall = sum(bits) / 1e6 / sum(rates) - 1.0
    return Measured(fmean(errors) <= 0.05, f"mean error a second {fmean(errors):.1%}, overall {overall:+.1%}")


def outage_edges(plan: CheckPlan) -> Measured:
    start, length = 1.5, 0.7
    shift = 0.03 if plan.planted else 0.0
    with open_checked_link("tun", NO_DELAY, plan.seed, events=[f"{start + shift}:blackhole:{length}:up"]) as link:
        client, server = link.datagrams()
        origin = link.origin()
        sent = sorted(t - origin for t in ticks(client, server, origin + 3.0 - time.monotonic()))
    gap, before = max((b - a, a) for a, b in pairwise(sent))
    edges = [(before - start) * 1e3, (before + gap - start - length) * 1e3]
    return Measured(all(abs(edge) <= 10.0 for edge in edges), f"begins {edges[0]:+.1f} ms, ends {edges[1]:+.1f} ms")


@contextmanager
def _stutter(pid: int, active: bool) -> Iterator[None]:
    """Stops the process for 20 ms out of every 40."""
    over = threading.Event()

    def alternate() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.02)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.02)

    thread = threading.Thread(target=alternate)
    if active:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if active:
            thread.join()


def lateness(plan: CheckPlan, backend: str) -> Measured:
    fields = {"delay": {"mean_ms": 10, "deviation_ms": 5}, "rate_mbps": 20}
    with open_checked_link(backend, fields, plan.seed) as link:
        ends = link.pair()
        with _stutter(link.process.process.pid, plan.planted):
            bulk_mbps(*ends, 3.0 if plan.quick else 10.0)
    seen = link.summary["lateness"]
    passed = seen["median_ms"] < MEDIAN_LIMIT_S * 1e3 and seen["p99_ms"] < P99_LIMIT_S * 1e3
    disagreement = "" if seen["flagged"] != passed else "; the flag disagrees"
    return Measured(
        passed and not disagreement,
        f"median {seen['median_ms']:.3f} ms, 99 % {seen['p99_ms']:.2f} ms of {seen['releases']:,} releases"
        + disagreement,
    )


def single_loss(plan: CheckPlan) -> Measured:
    one_way_ms = 21.3
    costs, rtts = [], []
    with open_checked_link("tun", {"delay": {"mean_ms": one_way_ms}}, plan.seed) as link:
        for _ in range(3 if plan.quick else 5):
            client, server = link.pair()
            echo = threading.Thread(target=_echo, args=(server,), daemon=True)
            echo.start()
            plain = [_ask(client) for _ in range(25)]
            rtts.append(median(plain))
            link.process.send(do="cut", direction="up")
            sent = time.monotonic()
            client.sendall(b"x")
            # The cut must end before the retransmission, which comes after SRTT + 200 ms; planted: it loses that too.
            time.sleep(0.35 if plan.planted else 0.03)
            link.process.send(do="heal")
            client.recv(1)
            costs.append((time.monotonic() - sent) * 1e3 - rtts[-1])
            client.close()
            echo.join()
    extra, wanted = median(costs), median(rtts) + 200.0
    return Measured(abs(extra - wanted) <= 25.0, f"costs {extra:.0f} ms; SRTT + 200 ms is {wanted:.0f} ms")


def _echo(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := sock.recv(4096):
            sock.sendall(data)
    sock.close()


def _ask(sock: socket.socket) -> float:
    start = time.monotonic()
    sock.sendall(b"x")
    sock.recv(1)
    return (time.monotonic() - start) * 1e3


def bytes_intact(plan: CheckPlan) -> Measured:
    content = random.Random(plan.seed).randbytes(2_000_000 if plan.quick else 8_000_000)
    fields = {
        "delay": {"mean_ms": 5, "deviation_ms": 4},
        "rate_mbps": 50,
        "loss": {"model": "gilbert_elliott", "enter_bad": 0.01, "leave_bad": 0.3, "loss_bad": 0.5},
        "queue_kib": 64,
    }
    wanted, passed = hashlib.sha256(content).hexdigest(), True
    for backend in ("tun", "proxy"):
        with open_checked_link(backend, fields, plan.seed) as link:
            client, server = link.pair()
            sender = threading.Thread(target=lambda c=client: (c.sendall(content), c.close()))
            sender.start()
            received = bytearray()
            while data := server.recv(1 << 20):
                received += data
            sender.join()
        if plan.planted:
            received[len(received) // 2] ^= 1
        passed = passed and hashlib.sha256(received).hexdigest() == wanted
    return Measured(passed, f"sha256 {wanted[:12]}, {len(content):,} bytes over each backend")


def capacity(plan: CheckPlan, backend: str) -> Measured:
    wanted = 400.0 if backend == "tun" else 1000.0
    fields: dict[str, Any] = {**NO_DELAY, **({"rate_mbps": wanted / 2} if plan.planted else {})}
    with open_checked_link(backend, fields, plan.seed) as link:
        seen = bulk_mbps(*link.pair(), 2.0 if plan.quick else 5.0)
    return Measured(seen >= wanted, f"{seen:.0f} Mbit/s")


def _check(
    name: str, aim: str, plant: str, measure: Callable[[CheckPlan], Measured], *, root: bool = True
) -> LinkCheck:
    return LinkCheck(name, aim, plant, measure, real_time=True, needs_root=root)


CHECKS = (
    _check("delays-tun", "KS D < 0.094 at n = 300", "4 ms more delay", lambda p: real_delays(p, "tun")),
    _check("delays-proxy", "KS D < 0.094 at n = 300", "4 ms more delay", lambda p: real_delays(p, "proxy"), root=False),
    _check("rate-tun", "payload rate within 3 %", "a rate 10 % lower", lambda p: rate(p, "tun")),
    _check("rate-proxy", "payload rate within 5 %", "a rate 10 % lower", lambda p: rate(p, "proxy"), root=False),
    _check("replay", "by the second, mean error within 5 %", "rates 10 % lower", replay),
    _check("outage-edges", "within 10 ms", "an outage 30 ms late", outage_edges),
    _check(
        "lateness-tun", "median < 0.3 ms, 99 % < 5 ms", "the emulator stopped for 20 of every 40 ms",
        lambda p: lateness(p, "tun"),
    ),
    _check(
        "lateness-proxy", "median < 0.3 ms, 99 % < 5 ms", "the emulator stopped for 20 of every 40 ms",
        lambda p: lateness(p, "proxy"), root=False,
    ),
    _check("single-loss", "costs SRTT + 200 ms, within 25 ms", "the first retransmission lost too", single_loss),
    LinkCheck("bytes-intact", "sha256 equal, over a lossy link", "one bit turned", bytes_intact, needs_root=True),
    _check("capacity-tun", "400 Mbit/s", "a limit of 200 Mbit/s", lambda p: capacity(p, "tun")),
    _check("capacity-proxy", "1 Gbit/s", "a limit of 500 Mbit/s", lambda p: capacity(p, "proxy"), root=False),
)  # fmt: skip
