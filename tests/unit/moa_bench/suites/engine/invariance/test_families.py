"""Every family gives the same bits in any chain, chunk, tree and batch, on every variant and number of threads."""

from __future__ import annotations

from random import Random

import pytest
from moa_bench.harness.targets import on_variant, variants_here
from moa_bench.suites.engine.invariance.measure import ComparedTarget, compare
from moa_bench.suites.engine.invariance.texts import PlannedText
from moa_kernels import PAGE_ROWS, variant_name
from moa_server.verifier.kernel_target import KernelTarget

from tests.support.dense_families import DENSE_FAMILIES, tiny_dense
from tests.support.tiny_models import tiny_kernel_target
from tests.support.torch_models import from_torch

pytestmark = pytest.mark.torch

LENGTHS = (90, 20, 7)  # the longest is several pages of keys and values, and many windows


def make_target(family: str) -> KernelTarget:
    return tiny_kernel_target(from_torch(tiny_dense(family)))


@pytest.mark.parametrize("family", DENSE_FAMILIES)
def test_every_family_gives_the_same_bits_in_every_way(family: str) -> None:
    if variant_name() == "numpy":
        pytest.skip("numpy is not exact, and nothing is served with it")
    others = {}
    for name in variants_here():
        if name != variant_name():
            with on_variant(name):
                others[name] = make_target(family)
    random = Random(0)
    texts = [PlannedText(tuple(random.randrange(97) for _ in range(length)), 10) for length in LENGTHS]
    subject = ComparedTarget("int8", make_target(family), others)
    *_, (_, tallies) = compare(subject, texts, id)
    assert {kind: counts.different for kind, counts in tallies.items()} == dict.fromkeys(tallies, 0)
    assert tallies["trees of 8 to 62"].rows == sum(text.positions for text in texts)


@pytest.mark.parametrize("family", DENSE_FAMILIES)
def test_a_shared_beginning_gives_the_same_bits(family: str) -> None:
    target, random = make_target(family), Random(1)
    text = [random.randrange(97) for _ in range(PAGE_ROWS + 20)]
    alone, sharing = target.new_cache(), target.new_cache()
    expected = target.forward(alone, text).logits[PAGE_ROWS:]
    if not target.page_tokens:
        pytest.skip("numpy's caches have no pages to share")
    sharing.adopt([alone.pages.full_page(0)])
    assert sharing.length == PAGE_ROWS
    got = target.forward(sharing, text[PAGE_ROWS:]).logits
    assert got.tobytes() == expected.tobytes()
