"""The proxy against the reference: the same traffic over both backends at once, with the same profile."""

from __future__ import annotations

import threading
from statistics import median, quantiles
from typing import Any

from netsim.validate.check import CheckPlan, LinkCheck, Measured
from netsim.validate.links import open_checked_link
from netsim.validate.traffic import bulk_mbps, request_latencies_ms

LIMITS = {"median": 0.10, "95 %": 0.20, "bulk": 0.25}


def compare(plan: CheckPlan) -> Measured:
    """Proxy against tun, both at once: the same requests and the same bulk over the same profile."""
    seconds = 12.0 if plan.quick else 40.0
    # 4g, its delay forgetting faster than the default 50 ms: the same distribution from more independent draws.
    fields: dict[str, Any] = {
        "delay": {"mean_ms": 21, "deviation_ms": 19, "correlation_ms": 10},
        "rate_mbps": 20,
        "loss": {"model": "bernoulli", "probability": 0.001},
    }
    planted = {**fields, "delay": {**fields["delay"], "mean_ms": 33}} if plan.planted else fields
    latencies: dict[str, list[float]] = {}
    rates: dict[str, float] = {}

    def run(backend: str, own: dict[str, Any]) -> None:
        with open_checked_link(backend, own, plan.seed) as link:
            latencies[backend] = request_latencies_ms(*link.pair(), seconds)
        with open_checked_link(backend, own, plan.seed) as link:
            rates[backend] = bulk_mbps(*link.pair(), seconds)

    threads = [
        threading.Thread(target=run, args=("tun", fields)),
        threading.Thread(target=run, args=("proxy", planted)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = {
        backend: {"median": median(ms), "95 %": quantiles(ms, n=20, method="inclusive")[-1], "bulk": rates[backend]}
        for backend, ms in latencies.items()
    }
    ratios = {name: values["proxy"][name] / values["tun"][name] - 1.0 for name in LIMITS}
    parts = [
        f"{name} {values['proxy'][name]:.1f} against {values['tun'][name]:.1f} "
        f"{'Mbit/s' if name == 'bulk' else 'ms'} ({ratio:+.0%})"
        for name, ratio in ratios.items()
    ]
    return Measured(all(abs(ratio) <= LIMITS[name] for name, ratio in ratios.items()), "; ".join(parts))


CHECKS = (
    LinkCheck(
        "proxy-against-tun",
        "request median within 10 %, 95 % within 20 %, bulk within 25 %",
        "12 ms more delay in the proxy",
        compare,
        real_time=True,
        needs_root=True,
    ),
)
