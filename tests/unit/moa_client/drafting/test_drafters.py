"""How drafters draft and write; a companion's network is a tiny one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.drafting.drafters import (
    CompanionDrafter,
    CompanionPair,
    LookupDrafter,
    MoaDrafter,
)
from moa_kernels import F32
from moa_shared.constraints.constrained_text import ConstrainedText
from moa_shared.drafter.companion import Companion, recall_agreement, remember_agreement
from moa_shared.drafting.drafts import Rows
from moa_shared.drafting.growing import CHAIN, Growth, GrowthShape
from moa_shared.drafting.guesses import chance_of_copy
from moa_shared.models.network.network import Network
from moa_shared.sampling.settings import Constraint, Sampling, choice_of
from moa_shared.tree import DraftTree

from tests.support.counted import RecordingDrafter
from tests.support.tiny_models import SIZES, ModelWeights, tiny_model
from tests.support.toy_forms import FIRST, ToyForms

GREEDY = Sampling(0.0)
MODEL = tiny_model()
NETWORK = Network(ModelWeights(MODEL), MODEL.config, plain=True)
LIMIT = MODEL.config["max_position_embeddings"]
EMPTY = DraftTree((), ())


def drafter() -> CompanionDrafter:
    files = cast("Any", SimpleNamespace(target_id="small", fingerprint="", config=MODEL.config))
    companion = Companion(files, cast("Any", None), NETWORK, SIZES["vocab_size"], F32)
    return CompanionDrafter(companion, shape=CHAIN)


def text(length: int) -> list[int]:
    return [7 * place % 90 for place in range(length)]


def test_what_is_read_ahead_changes_nothing() -> None:
    ahead, at_once = drafter(), drafter()
    for each in (ahead, at_once):
        each.restart(text(60))
    while ahead.read_on(GREEDY, writes=True):
        pass
    assert ahead.write(EMPTY, GREEDY) == pytest.approx(at_once.write(EMPTY, GREEDY))
    assert ahead.grow(EMPTY, GREEDY) == at_once.grow(EMPTY, GREEDY)


def test_beyond_the_texts_that_it_was_made_for_it_says_nothing() -> None:
    full = drafter()
    full.restart(text(LIMIT - 1))
    token = full.write(EMPTY, GREEDY)
    assert token is not None
    assert full.write(DraftTree.chain([token[0]]), GREEDY) is None
    full.commit([token[0]])
    assert not full.read_on(GREEDY, writes=True)
    assert not full.grow(EMPTY, GREEDY).tokens


def test_beside_another_drafter_it_writes_and_no_draft_waits_for_it() -> None:
    pair = CompanionPair(LookupDrafter(4), drafter())
    pair.restart(text(100))
    assert not pair.reads_memory
    assert not pair.read_on(GREEDY, writes=False)
    assert pair.read_on(GREEDY, writes=True)
    pair.commit([3])
    assert pair.write(EMPTY, GREEDY) is not None


@pytest.mark.parametrize(
    "sampling", [Sampling(0.8, seed=3), Sampling(0.0, repeat_penalty=3.0)], ids=["sampled", "penalties"]
)
def test_while_it_only_reads_it_is_judged_by_what_it_would_have_written_in_that_sampling(
    tmp_path: Path, sampling: Sampling
) -> None:
    """A server whose model is the same says the same; the likeliest token is another one, more often than not."""
    writing, reading = drafter(), drafter()
    for each in (writing, reading):
        each.restart(text(20))
    for _ in range(40):
        token = writing.write(EMPTY, sampling)
        assert token is not None
        writing.commit([token[0]])
        reading.commit([token[0]])
    while reading.read_on(sampling, writes=True):
        pass
    assert reading._companion.agreement.tokens >= 8
    assert reading._companion.agreement.right == reading._companion.agreement.tokens
    remember_agreement(tmp_path, "small", "large", reading._companion.agreement)
    assert recall_agreement(tmp_path, "small", "large") == reading._companion.agreement


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_a_look_up_is_a_copy_from_the_conversation(tokens: list[int]) -> None:
    drafter = LookupDrafter(length=2)
    drafter.restart(tokens)
    chain = list(drafter.grow(EMPTY, Sampling()).tokens)
    assert not chain or any(
        tokens[at - 1] == tokens[-1] and tokens[at : at + len(chain)] == chain for at in range(1, len(tokens))
    )


def test_look_up_continues_below_any_draft_and_writes_standalone() -> None:
    drafter = LookupDrafter(length=2)
    drafter.restart([1, 2, 3, 4, 5, 9, 1, 2])
    assert drafter.grow(DraftTree.chain([]), Sampling()) == Growth((3, 4), (-1, 0), (0, 1))
    assert drafter.grow(DraftTree.chain([3, 4]), Sampling()) == Growth((5, 9), (1, 2), (0, 1))
    assert drafter.grow(DraftTree((3, 4, 7), (-1, 0, 0)), Sampling()) == Growth()
    assert drafter.write(DraftTree.chain([3]), Sampling()) == (4, chance_of_copy(3))
    assert drafter.write(DraftTree.chain([8]), Sampling()) is None


class WrongDrafter(RecordingDrafter):
    logits = [0.0] * 49 + [9.0]

    def begin(self) -> Rows:
        return self.expand([0], [-1])

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        return np.array([self.logits] * len(tokens), np.float32)


END = 95
CHOICE = choice_of(["red apple", "red pear", "green pear"])


def tokens_of(text: str) -> list[int]:
    return [ord(each) - FIRST for each in text]


class Compiler(ToyForms):
    def __init__(self) -> None:
        super().__init__(END)
        self.may = threading.Event()

    def begin(self, constraint: Constraint) -> ConstrainedText:
        assert self.may.wait(20)
        return super().begin(constraint)


class Flat(WrongDrafter):
    logits = [0.0] * (END + 1)


def sampling(start: int) -> Sampling:
    return Sampling(constraint=CHOICE).within(start)


def test_drafts_keep_to_the_form_as_soon_as_it_is_compiled() -> None:
    compiler, thread = Compiler(), ThreadPoolExecutor(1)
    drafter = MoaDrafter(
        Flat, reads_memory=False, shape=GrowthShape(3, 8, 0.001), forms=lambda form: thread.submit(compiler.begin, form)
    )
    question = tokens_of("What?")
    drafter.restart([*question, *tokens_of("r")])
    assert drafter.grow(EMPTY, sampling(5)).tokens != ()  # anything
    compiler.may.set()
    thread.submit(int).result(20)  # after what it was asked before
    assert drafter.grow(EMPTY, sampling(5)).tokens == tuple(tokens_of("ed "))
    drafter.commit(tokens_of("ed p"))
    assert drafter.grow(EMPTY, sampling(5)).tokens[:3] == tuple(tokens_of("ear"))
    assert drafter.write(DraftTree.chain(tokens_of("e")), sampling(5)) == (tokens_of("a")[0], 1.0)
    assert len(drafter.grow(EMPTY, Sampling()).tokens) == 3  # the next answer has none
