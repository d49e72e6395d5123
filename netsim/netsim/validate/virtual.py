"""Checks of the core in virtual time: no clock, so the same verdict on every machine."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from netsim.core.conditions import Conditions
from netsim.core.delay import DelaySpec, Truncation
from netsim.core.link import Direction, Drop, LinkModel, Release, Verdict
from netsim.core.loss import Bernoulli, GilbertElliott, LossSpec
from netsim.core.schedule import ConditionSchedule
from netsim.core.stream import StreamSender
from netsim.profile import catalogue
from netsim.profile.scenario import Scenario
from netsim.validate.check import CheckPlan, LinkCheck, Measured
from netsim.validate.statistics import KS_D_300, RUNS_LIMIT, binomial_interval, kolmogorov_smirnov, runs_z

DRAWS = 100_000
FOUR_G = DelaySpec(21.0, 19.0)


def virtual_log(seed: int) -> str:
    """Digest of everything that a link decides in a minute of virtual time, packets and a stream both."""
    digest = hashlib.sha256()

    def observe(direction: Direction, t: float, nbytes: int, verdict: Verdict) -> None:
        digest.update(f"{direction} {t!r} {nbytes} {verdict!r}\n".encode())

    links = Scenario(catalogue.load("lte-train"), seed).models(observe)
    sender = StreamSender(links[Direction.UP], links[Direction.DOWN], 0.0, 0.07)
    for step in range(6_000):
        t = step * 0.01
        links[Direction.DOWN].admit(100 + step % 1400, t)
        sender.offer(500, t)
        delivered = sender.deliver(t)
        digest.update(f"{delivered!r}\n".encode())
    return digest.hexdigest()


def determinism(plan: CheckPlan) -> Measured:
    first, second = virtual_log(plan.seed), virtual_log(plan.seed + plan.planted)
    return Measured(first == second, f"sha256 {first[:12]} and {second[:12]}")


def delay_draws(plan: CheckPlan) -> Measured:
    worst = 1.0
    for spec in (
        replace(FOUR_G, correlation_ms=0.0),
        FOUR_G,
        replace(FOUR_G, truncation=Truncation.PRESERVE_MEAN, correlation_ms=0.0),
        DelaySpec(10.0, 10.0, correlation_ms=0.0),
    ):
        drawn = replace(spec, deviation_ms=spec.deviation_ms * 1.03) if plan.planted else spec
        # Correlated draws are taken 20 time constants apart, where exp(-20) is left of the correlation.
        values = _delays_ms(drawn, DRAWS, 1.0, plan.seed)
        worst = min(worst, kolmogorov_smirnov(values, spec.cdf).p_value)
    return Measured(worst > 0.01, f"least p {worst:.3g} of 4 distributions")


def jitter_control(plan: CheckPlan) -> Measured:
    spec = replace(FOUR_G, correlation_ms=0.0)
    spacing_s = 0.5 if plan.planted else 0.005
    link = LinkModel(ConditionSchedule([(0.0, Conditions(delay=spec))]), plan.seed, Direction.UP)
    values = []
    for i in range(300):
        verdict = link.admit(100, i * spacing_s)
        if isinstance(verdict, Release):
            values.append((verdict.t - i * spacing_s) * 1e3)
    distance = kolmogorov_smirnov(values, spec.cdf).distance
    return Measured(distance >= KS_D_300, f"D {distance:.3f}, mean {sum(values) / len(values):.1f} ms against 25.75")


def loss_count(plan: CheckPlan) -> Measured:
    passed, parts = True, []
    for p, n in ((0.001, 200_000), (0.02, 50_000)):
        low, high = binomial_interval(n, p)
        lost = sum(_losses(Bernoulli(p * (1.5 if plan.planted else 1.0)), n, plan.seed))
        passed = passed and low <= lost <= high
        parts.append(f"{lost} of {n:,} ({low} to {high})")
    return Measured(passed, "; ".join(parts))


def loss_runs(plan: CheckPlan) -> Measured:
    # The same share of losses, in bursts of five.
    spec: LossSpec = GilbertElliott(0.2 * 0.05 / 0.95, 0.2) if plan.planted else Bernoulli(0.05)
    z = runs_z(_losses(spec, DRAWS, plan.seed))
    return Measured(abs(z) < RUNS_LIMIT, f"z {z:.2f}")


def _losses(spec: LossSpec, n: int, seed: int) -> list[bool]:
    link = LinkModel(ConditionSchedule([(0.0, Conditions(loss=spec))]), seed, Direction.UP)
    return [isinstance(link.admit(100, i * 1e-3), Drop) for i in range(n)]


def _delays_ms(spec: DelaySpec, n: int, spacing_s: float, seed: int) -> list[float]:
    link = LinkModel(ConditionSchedule([(0.0, Conditions(delay=spec))]), seed, Direction.UP)
    verdicts = (link.admit(100, i * spacing_s) for i in range(n))
    return [verdict.delay_s * 1e3 for verdict in verdicts if isinstance(verdict, Release)]


CHECKS = (
    LinkCheck("determinism", "same seed, same virtual-time log", "another seed", determinism),
    LinkCheck("delay-draws", "KS p > 0.01 at n = 100,000", "a deviation 3 % larger", delay_draws),
    LinkCheck(
        "jitter-control",
        "independent jitter, FIFO, 5 ms apart: KS must fail, D >= 0.094",
        "packets 0.5 s apart",
        jitter_control,
    ),
    LinkCheck("loss-count", "inside the 99 % binomial interval", "half as many losses again", loss_count),
    LinkCheck("loss-runs", "runs test, z within 2.58", "losses in bursts of five", loss_runs),
)
