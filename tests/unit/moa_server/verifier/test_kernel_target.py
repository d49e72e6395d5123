"""Rows of the level int8: the same bits alone, in trees, chunks and batches, on all variants and numbers of threads."""

import platform
from collections.abc import Iterator, Sequence
from functools import lru_cache
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moa_kernels import set_threads, threads
from moa_kernels.library import VARIANT_VARIABLE, present, probe
from moa_kernels.variants import LIBRARIES, variants_of
from moa_server.verifier import KVCache, Request, TargetOutput
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.errors import InternalError
from moa_shared.tree import path_to

from tests.support.skipping import examples
from tests.support.tiny_models import FAMILIES, HYBRID, SIZES, tiny_kernel_target, tiny_model

VARIANTS = [
    variant.name
    for variant in variants_of(platform.machine())
    if variant.name in present(LIBRARIES) and probe(LIBRARIES) & variant.bit
]
THREADS = (1, 2, 3)
TOKENS = st.integers(0, SIZES["vocab_size"] - 1)
LAYER = 2  # whose state is compared

pytestmark = pytest.mark.skipif(not VARIANTS, reason="there are no kernels for this CPU")
drawn = settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    before = threads()
    yield
    set_threads(before)


@pytest.fixture(
    params=[*((variant, "llama") for variant in VARIANTS), *((variant, HYBRID) for variant in VARIANTS[:1])]
)
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> KernelTarget:
    variant, family = request.param
    monkeypatch.setenv(VARIANT_VARIABLE, variant)
    return load(variant, family)


@lru_cache
def load(variant: str, family: str) -> KernelTarget:
    """With matrices in 4 and in 8 bits; `variant` is in force already."""
    return tiny_kernel_target(tiny_model(family, max_position_embeddings=512))


Row = tuple[bytes, ...]  # logits, hidden state, state of a layer, keys and values


def rows_of(output: TargetOutput, kv: np.ndarray) -> list[Row]:
    parts = (output.logits, output.hidden, output.states[LAYER], kv)
    return [tuple(part[row].tobytes() for part in parts) for row in range(len(kv))]


def alone(target: KernelTarget, text: Sequence[int]) -> list[Row]:
    """Each token in a forward of its own, on one thread."""
    set_threads(1)
    cache, rows = target.new_cache(), []
    for place, token in enumerate(text):
        output = target.forward(cache, [token], want_state_layer=LAYER)
        rows += rows_of(output, cache.lsa_input(place, place + 1))
    return rows


@st.composite
def trees(draw: st.DrawFn, most: int = 20) -> tuple[list[int], list[int]]:
    """Tokens and parents."""
    count = draw(st.integers(1, most))
    tokens = draw(st.lists(TOKENS, min_size=count, max_size=count))
    return tokens, [draw(st.integers(-1, node - 1)) for node in range(count)]


@given(st.lists(TOKENS, min_size=1, max_size=80), st.lists(st.integers(1, 70), max_size=4), st.sampled_from(THREADS))
@drawn
def test_chunks_have_the_bits_of_single_tokens(
    target: KernelTarget, text: list[int], cuts: list[int], count: int
) -> None:
    expected = alone(target, text)
    set_threads(count)
    cache, start = target.new_cache(), 0
    for size in [*cuts, len(text)]:
        chunk = text[start : start + size]
        if chunk:
            output = target.forward(cache, chunk, want_state_layer=LAYER)
            got = rows_of(output, cache.lsa_input(start, start + len(chunk)))
            assert got == expected[start : start + len(chunk)]
        start += len(chunk)


@given(st.lists(TOKENS, max_size=70), trees(), st.sampled_from(THREADS))
@drawn
def test_a_tree_has_the_bits_of_its_paths(
    target: KernelTarget, text: list[int], tree: tuple[list[int], list[int]], count: int
) -> None:
    tokens, parents = tree
    set_threads(count)
    cache = target.new_cache()
    if text:
        target.forward(cache, text)
    output = target.forward(cache, tokens, parents, want_state_layer=LAYER)
    got = rows_of(output, cache.lsa_input(len(text), len(text) + len(tokens)))
    for node in range(len(tokens)):
        path = path_to(parents, node)
        assert got[node] == alone(target, [*text, *(tokens[step] for step in path)])[-1]


@given(st.data(), st.sampled_from(THREADS))
@drawn
def test_what_follows_a_kept_path_has_the_bits_of_the_text(
    target: KernelTarget, data: st.DataObject, count: int
) -> None:
    set_threads(count)
    cache, text = target.new_cache(), data.draw(st.lists(TOKENS, min_size=1, max_size=66))
    target.forward(cache, text)
    for _ in range(2):
        tokens, parents = data.draw(trees())
        set_threads(count)
        target.forward(cache, tokens, parents)
        path = path_to(parents, data.draw(st.integers(-1, len(tokens) - 1)))
        cache.keep(path)
        text = text + [tokens[node] for node in path]
        back = data.draw(st.integers(0, min(3, len(text) - 1)))
        text = text[: len(text) - back]
        if (held := cache.crop(len(text))) < len(text):  # recurrent states were not kept there
            target.forward(cache, text[held:])
    output = target.forward(cache, [7], want_state_layer=LAYER)
    expected = alone(target, [*text, 7])
    assert rows_of(output, cache.lsa_input(len(text), len(text) + 1)) == expected[-1:]
    assert cache.lsa_input(0, cache.length).tobytes() == b"".join(row[3] for row in expected)


@given(st.lists(st.tuples(st.lists(TOKENS, max_size=20), trees(10)), min_size=2, max_size=5), st.sampled_from(THREADS))
@drawn
def test_a_batch_has_the_bits_of_each_conversation(
    target: KernelTarget, conversations: list[tuple[list[int], tuple[list[int], list[int]]]], count: int
) -> None:
    set_threads(count)
    requests, expected = [], []
    for number, (text, (tokens, parents)) in enumerate(conversations):
        single, shared = target.new_cache(), target.new_cache()
        for cache in (single, shared):
            if text:
                target.forward(cache, text)
        own = None if number % 2 else parents  # trees and chains side by side
        output = target.forward(single, tokens, own, want_state_layer=LAYER)
        expected.append(rows_of(output, single.lsa_input(len(text), len(text) + len(tokens))))
        requests.append(Request(shared, tokens, own, range(len(tokens)), (LAYER,)))
    for request, output, rows in zip(requests, target.forward_all(requests), expected, strict=True):
        stop = request.cache.length
        assert rows_of(output, request.cache.lsa_input(stop - len(rows), stop)) == rows


@pytest.mark.parametrize("family", FAMILIES)
def test_all_variants_and_numbers_of_threads_give_the_same_bits(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = [(31 * place + 7) % SIZES["vocab_size"] for place in range(200)]
    parents = [-1, *((node - 1) // 3 for node in range(1, 62))]
    seen: dict[bytes, list[str]] = {}
    for variant in VARIANTS:
        monkeypatch.setenv(VARIANT_VARIABLE, variant)
        target = load(variant, family)
        for count in THREADS:
            set_threads(count)
            caches = [target.new_cache(), target.new_cache()]
            for start in range(0, len(text), 70):
                target.forward(caches[0], text[start : start + 70])
            outputs = target.forward_all(
                [Request(caches[0], text[:62], parents, range(62), (LAYER,)), Request(caches[1], text[:9], None, [8])]
            )
            arrays = [outputs[0].logits, outputs[0].hidden, outputs[0].states[LAYER], outputs[1].logits]
            arrays += [cache.lsa_input(0, cache.length) for cache in caches]
            bits = b"".join(np.asarray(array).tobytes() for array in arrays)
            seen.setdefault(bits, []).append(f"{variant} on {count}")
    assert len(seen) == 1, list(seen.values())


def test_another_backends_cache_is_refused() -> None:
    with pytest.raises(InternalError, match="A forward of the kernels was given another"):
        tiny_kernel_target(tiny_model()).forward(Mock(spec=KVCache, length=0), [1])


@pytest.mark.parametrize("length", [64, 65, 127, 128, 129])
def test_states_go_back_to_a_checkpoint_and_no_further(length: int) -> None:
    """To the bit; also where a text is cut at the edge of a page."""
    target, text = load("", HYBRID), [(31 * place + 7) % SIZES["vocab_size"] for place in range(140)]
    cache = target.new_cache()
    target.forward(cache, text[:64])
    cache.checkpoint()
    target.forward(cache, text[64:128])
    cache.checkpoint()
    target.forward(cache, text[128:])
    assert cache.nbytes <= cache.most_nbytes(140, 0)
    assert cache.crop(length) == (128 if length >= 128 else 64)
    output = target.forward(cache, text[cache.length :], want_state_layer=LAYER)
    fresh = target.forward(target.new_cache(), text, want_state_layer=LAYER)
    count = len(output.logits)
    assert output.logits.tobytes() == fresh.logits[-count:].tobytes()
    assert cache.crop(63) == 0


def test_few_checkpoints_are_kept() -> None:
    """Of those before newest answers two, and one in 2,048 positions: as many as a conversation is promised."""
    target = tiny_kernel_target(tiny_model(HYBRID, max_position_embeddings=4500))
    cache = target.new_cache()
    for start in range(0, 4224, 128):
        target.forward(cache, [start % 97] * 128, logits_for=())
        cache.checkpoint()
    assert [cache.crop(most) for most in (4223, 4095, 3967, 2047)] == [4096, 3968, 2048, 0]
