"""How a companion reads, drafts and writes on a device; its network is a tiny one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from moa_client.drafting import companion as module
from moa_client.drafting.companion import LEAST_PIECE, CompanionDrafter, CompanionPair, PairedDrafter
from moa_client.drafting.drafters import LookupDrafter, ReadingDrafter
from moa_kernels import F32
from moa_shared.drafter.companion.known import recall_agreement, remember_agreement
from moa_shared.drafter.companion.loading import Companion
from moa_shared.drafting import CHAIN, Growth, draft_chain
from moa_shared.models.network.network import Network
from moa_shared.programs import machine
from moa_shared.sampling.settings import Sampling
from moa_shared.tree.draft_tree import DraftTree

from tests.support.tiny_models import SIZES, ModelWeights, tiny_model

GREEDY = Sampling(0.0)
MODEL = tiny_model()
NETWORK = Network(ModelWeights(MODEL), MODEL.config, plain=True)
LIMIT = MODEL.config["max_position_embeddings"]
EMPTY = DraftTree((), ())


def drafter(**options: Any) -> CompanionDrafter:
    files = cast("Any", SimpleNamespace(target_id="small", fingerprint="", config=MODEL.config))
    companion = Companion(files, cast("Any", None), NETWORK, SIZES["vocab_size"], F32)
    return CompanionDrafter(companion, lambda state, sampling: draft_chain(state, 3, sampling), shape=CHAIN, **options)


def text(length: int) -> list[int]:
    return [7 * place % 90 for place in range(length)]


def write(alone: CompanionDrafter, tokens: int, sampling: Sampling) -> list[int]:
    written: list[int] = []
    while len(written) < tokens:
        token = alone.write(DraftTree.chain(written), sampling)
        assert token is not None
        written.append(token[0])
    return written


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each piece takes, in seconds."""
    took = [0.0]
    times = iter(step for _ in iter(int, 1) for step in (0.0, took[0]))
    for each in (module, machine):
        monkeypatch.setattr(each, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    return took


def test_pieces_become_as_large_as_their_time_allows(clock: list[float]) -> None:
    reading = drafter()
    reading.restart(text(120))
    unread = [119]
    while reading.read_on(GREEDY, writes=True):
        unread.append(reading._state.unread)
        clock[0] = 0.0 if len(unread) < 3 else 1.0
    assert unread == [119, 111, 95, 63, 47, 39, 31, 23, 15]
    assert reading._state.unread == 15 - LEAST_PIECE


def test_what_is_read_ahead_changes_nothing() -> None:
    ahead, at_once = drafter(), drafter()
    for each in (ahead, at_once):
        each.restart(text(60))
    while ahead.read_on(GREEDY, writes=True):
        pass
    assert ahead.write(EMPTY, GREEDY) == pytest.approx(at_once.write(EMPTY, GREEDY))
    assert ahead.draft(GREEDY) == at_once.draft(GREEDY)


def test_beyond_the_texts_that_it_was_made_for_it_says_nothing() -> None:
    full = drafter()
    full.restart(text(LIMIT - 1))
    token = full.write(EMPTY, GREEDY)
    assert token is not None
    assert full.write(DraftTree.chain([token[0]]), GREEDY) is None
    full.commit([token[0]])
    assert not full.read_on(GREEDY, writes=True)
    assert not full.draft(GREEDY)
    assert not full.grow(EMPTY, GREEDY).tokens


def test_beside_another_drafter_it_writes_and_no_draft_waits_for_it() -> None:
    pair = CompanionPair(LookupDrafter(4), drafter())
    pair.restart(text(100))
    assert isinstance(pair, ReadingDrafter)
    assert not isinstance(LookupDrafter(4), ReadingDrafter)
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
    assert reading._agreement.tokens >= 8
    assert reading._agreement.right == reading._agreement.tokens
    remember_agreement(tmp_path, "small", "large", reading._agreement)
    assert recall_agreement(tmp_path, "small", "large") == reading._agreement


class Named:
    """Says its number, and remembers what it was told."""

    reads_memory = True
    most_depth = None

    def __init__(self, number: int) -> None:
        self.number = number
        self.told: list[object] = []

    def restart(self, tokens: Sequence[int]) -> None:
        self.told.append(("restart", tuple(tokens)))

    def commit(self, tokens: Sequence[int]) -> None:
        self.told.append(("commit", tuple(tokens)))

    def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None:
        self.told.append((start, len(rows), state))

    def draft(self, sampling: Sampling) -> DraftTree:
        return DraftTree.chain([self.number])

    def grow(self, draft: DraftTree, sampling: Sampling) -> Growth:
        return Growth((self.number,), (-1,))

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        return self.number, 0.5


def test_one_drafts_the_other_writes_and_both_know_the_same() -> None:
    online, alone = Named(1), Named(2)
    pair = PairedDrafter(online, alone)
    assert pair.reads_memory
    pair.restart([5, 6])
    pair.commit([7])
    pair.remember(0, np.zeros((2, 3), np.float32), state=True)
    pair.remember(1, np.zeros((1, 3), np.float32), state=False)
    assert online.told == alone.told == [("restart", (5, 6)), ("commit", (7,)), (0, 2, True), (1, 1, False)]
    assert pair.draft(Sampling()).tokens == (1,)
    assert pair.grow(DraftTree.chain([]), Sampling()).tokens == (1,)
    assert pair.write(DraftTree.chain([]), Sampling()) == (2, 0.5)
