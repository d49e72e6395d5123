"""The whole comparison on a tiny target: exact kernels show no difference, and a target that is not exact is caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import numpy as np
import pytest
from moa_bench.engine.invariance.readings import Tally
from moa_bench.engine.invariance.suite import Subject, compare
from moa_bench.engine.invariance.texts import PlannedText
from moa_bench.harness.targets import on_variant, variants_here
from moa_kernels import threads, variant_name
from moa_server.target import Target, TargetOutput
from moa_server.target.kernel_target import KernelTarget
from moa_server.target.target import Request

MakeTarget = Callable[[], KernelTarget]
LONG = 200  # positions: several pages of keys and values


def texts() -> list[PlannedText]:
    random = Random(0)
    lengths = [20, LONG, 40, 9, 70, 12, 33, 51, 25]  # nine: the last one is a group of its own
    return [PlannedText(tuple(random.randrange(97) for _ in range(length)), 10) for length in lengths]


def last(subject: Subject, planned: list[PlannedText], advance: Callable[[int], object] = id) -> dict[str, Tally]:
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
            outputs = [TargetOutput(each.logits, each.hidden, np.zeros_like(each.state)) for each in outputs]
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
    tallies = last(Subject("int8", make_target(), others), texts(), done.append)
    positions = sum(text.positions for text in texts())
    assert sum(done) == positions
    assert {kind: counts.different for kind, counts in tallies.items()} == dict.fromkeys(tallies, 0)
    assert sum(counts.flipped for counts in tallies.values()) == 0
    for kind in ("chains of 2 to 62", "prompts in chunks of 1 to 400", "trees of 8 to 62"):
        assert tallies[kind].rows == positions
    assert tallies["batches of up to 8 conversations"].rows == positions
    assert tallies["2 threads"].rows + tallies["3 threads"].rows == positions
    assert sum(tallies[f"kernels {name}"].rows for name in others) == (positions if others else 0)
    assert tallies["trees of wrong branches, all nodes"].rows == 12 * len(texts())
    assert threads() == 1


def test_a_rounding_that_depends_on_the_rows_is_counted(make_target: MakeTarget) -> None:
    exact = make_target()
    leaning: Target = LeaningTarget(exact.network, 512)
    tallies = last(Subject("int8", leaning, threads=()), texts()[:2])
    chains = tallies["chains of 2 to 62"]
    assert chains.different > 0.9 * chains.rows  # single rows at a text's end are equal
    assert "2 threads" not in tallies


def test_a_state_that_differs_is_counted(make_target: MakeTarget) -> None:
    tallies = last(Subject("int8", StatelessTarget(make_target().network, 512), threads=()), texts()[:2])
    assert tallies["chains of 2 to 62"].different == 0
    batches = tallies["batches of up to 8 conversations"]
    assert batches.different > 0
    assert batches.flipped == 0
