"""The whole comparison on a tiny target: exact kernels show no difference, and a target that is not exact is caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import pytest
from moa_bench.harness.targets import on_variant, variants_here
from moa_bench.suites.engine.invariance.measure import ComparedTarget, compare
from moa_bench.suites.engine.invariance.readings import Tally
from moa_bench.suites.engine.invariance.texts import PlannedText
from moa_kernels import threads, variant_name
from moa_server.verifier import Target, TargetOutput
from moa_server.verifier.kernel_target import KernelTarget
from moa_server.verifier.target import Request

MakeTarget = Callable[[], KernelTarget]
LONG = 200  # positions: several pages of keys and values


def texts() -> list[PlannedText]:
    random = Random(0)
    lengths = [20, LONG, 40, 9, 70, 12, 33, 51, 25, 8, 14, 60, 31, 22, 7, 45, 25]  # the last is a group of its own
    return [PlannedText(tuple(random.randrange(97) for _ in range(length)), 10) for length in lengths]


def last(
    subject: ComparedTarget, planned: list[PlannedText], advance: Callable[[int], object] = id
) -> dict[str, Tally]:
    """What was counted in the end."""
    *_, (count, tallies) = compare(subject, planned, advance)
    assert count == len(planned)
    return tallies


class LeaningTarget(KernelTarget):
    """As bf16 on most machines: rows of a forward of many round a little differently."""

    def _run(self, requests: Sequence[Request], depths: Sequence[Sequence[int]]) -> list[TargetOutput]:
        outputs = super()._run(requests, depths)
        if sum(len(request.tokens) for request in requests) > 1:
            for output in outputs:
                output.logits[:] = np.nextafter(output.logits, np.float32(np.inf))
        return outputs


class StatelessTarget(KernelTarget):
    """In batches gives zeros for the state, and right logits."""

    def _run(self, requests: Sequence[Request], depths: Sequence[Sequence[int]]) -> list[TargetOutput]:
        outputs = super()._run(requests, depths)
        if len(requests) > 1:
            outputs = [
                each
                if each.state is None
                else TargetOutput(each.logits, each.hidden, dict.fromkeys(each.states, np.zeros_like(each.state)))
                for each in outputs
            ]
        return outputs


@pytest.mark.timeout(120)
def test_kernels_give_the_same_bits_in_every_way(make_target: MakeTarget) -> None:
    if variant_name() == "numpy":
        pytest.skip("numpy is not exact, and nothing is served with it")
    others = {}
    for name in variants_here():
        if name != variant_name():
            with on_variant(name):
                others[name] = make_target()
    done: list[int] = []
    tallies = last(ComparedTarget("int8", make_target(), others), texts(), done.append)
    positions = sum(text.positions for text in texts())
    assert sum(done) == positions
    assert {kind: counts.different for kind, counts in tallies.items()} == dict.fromkeys(tallies, 0)
    assert sum(counts.flipped for counts in tallies.values()) == 0
    for kind in ("chains of 2 to 62", "prompts in chunks of 1 to 400", "trees of 8 to 62"):
        assert tallies[kind].rows == positions
    batches = [counts for kind, counts in tallies.items() if "1 session" in kind or kind.startswith("of ")]
    assert sum(counts.rows for counts in batches) >= positions
    assert len(batches) == 4
    assert tallies["2 threads"].rows + tallies["3 threads"].rows == positions
    assert sum(tallies[f"kernels {name}"].rows for name in others) == (positions if others else 0)
    assert tallies["trees of wrong branches, all nodes"].rows == 12 * len(texts())
    assert threads() == 1


def test_a_rounding_that_depends_on_the_rows_is_counted(make_target: MakeTarget) -> None:
    exact = make_target()
    leaning: Target = LeaningTarget(exact.network, 512)
    tallies = last(ComparedTarget("int8", leaning, threads=()), texts()[:2])
    chains = tallies["chains of 2 to 62"]
    assert chains.different > 0.9 * chains.rows  # single rows at a text's end are equal
    assert "2 threads" not in tallies


def test_a_state_that_differs_is_counted(make_target: MakeTarget) -> None:
    tallies = last(ComparedTarget("int8", StatelessTarget(make_target().network, 512), threads=()), texts()[:4])
    assert tallies["chains of 2 to 62"].different == 0
    assert tallies["a forward of 1 session"].different == 0
    assert tallies["of 2 to 4"].different > 0
    assert tallies["of 2 to 4"].flipped == 0


class CrossedTarget(KernelTarget):
    """Gives one session of a large forward the logits of another."""

    def _run(self, requests: Sequence[Request], depths: Sequence[Sequence[int]]) -> list[TargetOutput]:
        outputs = super()._run(requests, depths)
        if len(requests) > 8:
            for output, other in zip(outputs, reversed(outputs), strict=True):
                count = min(len(output.logits), len(other.logits))
                output.logits[:count] = other.logits[:count].copy()
        return outputs


def test_one_sessions_rows_in_anothers_place_are_counted(make_target: MakeTarget) -> None:
    tallies = last(ComparedTarget("int8", CrossedTarget(make_target().network, 512), threads=()), texts())
    large = tallies.pop("of 9 to 16")
    assert large.flipped > 10
    assert sum(counts.different for counts in tallies.values()) == 0
