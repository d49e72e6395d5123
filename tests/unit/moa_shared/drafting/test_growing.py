"""Drafts that grow while they are pruned, over a toy drafter that keeps its draft, and one that cannot."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.drafter.kinds.state import DraftNodes
from moa_shared.drafting.drafts import draft_chain
from moa_shared.drafting.estimates import TokenOrigin
from moa_shared.drafting.growing import CHAIN, ConversationDraft, GrowingDraft, Growth, GrowthShape
from moa_shared.drafting.guesses import TextGuesser
from moa_shared.sampling.coupling import select
from moa_shared.sampling.scores import TextBefore, largest, log_softmax
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree, StreamedTree

VOCAB = 7
Rows = npt.NDArray[np.float32]
TREE = GrowthShape(breadth=3, nodes=24, survival=0.02)
GREEDY = Sampling()
PENALISED = Sampling(repeat_penalty=1.6, repeat_last_n=4, frequency_penalty=0.6, logit_bias=((2, 1.0),), answer_start=3)
PENALISED_SAMPLES = replace(PENALISED, temperature=0.8, seed=5, min_p=0.02)


class ToyDrafter:
    """Logits that depend on the last two tokens of the text; a node is expanded once."""

    token_ids = None
    most_depth: int | None = None

    def __init__(self, seed: int, *, keeps: bool = True) -> None:
        self.text = [0]
        self.steps = 0
        self._keeps = keeps
        self._nodes = DraftNodes()
        self._begun = False
        self._table = 2 * np.random.default_rng(seed).standard_normal((VOCAB, VOCAB, VOCAB), np.float32)

    @property
    def tokens(self) -> list[int]:
        return self.text

    @property
    def next_position(self) -> int:
        return len(self.text)

    def logits(self, text: Sequence[int]) -> Rows:
        row: Rows = self._table[([0, *text])[-2], text[-1]]
        return row

    def begin(self) -> Rows:
        self._nodes.clear()
        self._begun = True
        self.steps += 1
        return self.logits(self.text)[None]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        assert self._begun
        known = len(self._nodes)
        self._nodes.add(tokens, parents)
        pairs = list(zip(self._nodes.tokens, self._nodes.parents, strict=True))
        assert len(set(pairs)) == len(pairs)
        self.steps += 1
        tree = DraftTree(tuple(self._nodes.tokens), tuple(self._nodes.parents))
        paths = [[tree.tokens[step] for step in tree.path_to(node)] for node in range(known, len(tree))]
        return np.stack([self.logits([*self.text, *path]) for path in paths])

    def extend(self, tokens: Sequence[int]) -> tuple[int, ...] | None:
        self.text += tokens
        if not (self._begun and self._keeps):
            self._begun = False
            return None
        kept = self._nodes.advance(tokens)[1]
        self._begun = kept is not None
        return kept


def add(draft: DraftTree, growth: Growth) -> DraftTree:
    return DraftTree(draft.tokens + growth.tokens, draft.parents + growth.parents)


def survival(toy: ToyDrafter, draft: DraftTree, node: int) -> float:
    text, log = list(toy.text), 0.0
    for step in draft.path_to(node):
        log += float(log_softmax(toy.logits(text))[draft.tokens[step]])
        text.append(draft.tokens[step])
    return math.exp(log)


@given(st.integers(0, 99), st.sampled_from([PENALISED, PENALISED_SAMPLES]))
def test_a_drafter_that_agrees_drafts_what_the_target_chooses_under_penalties(seed: int, sampling: Sampling) -> None:
    expected, prompt = ToyDrafter(seed), [1, 2, 3, 1]
    expected.extend(prompt)
    for _ in range(8):
        text = expected.text
        expected.extend(select(expected.logits(text)[None], [len(text)], sampling, TextBefore(text, [()])))
    answer = expected.text[1 + len(prompt) :]
    assert len(set(answer)) > 2  # penalties are at work

    whole, growing = ToyDrafter(seed), GrowingDraft(ToyDrafter(seed), TREE)
    whole.extend(prompt)
    assert list(draft_chain(whole, 8, sampling).tokens) == answer
    growing.commit(prompt)
    draft = DraftTree((), ())
    while (growth := growing.grow_on(draft, sampling)).tokens:
        draft = add(draft, growth)
    first = answer[0]
    assert draft.child_with(-1, first) is not None
    assert [growing.next_token(DraftTree.chain(answer[:at]), sampling).token for at in range(8)] == answer


@given(st.integers(0, 99), st.integers(1, 8), st.sampled_from([0.0, 0.7]))
def test_a_chain_grows_to_what_is_drafted_at_once(seed: int, length: int, temperature: float) -> None:
    sampling = Sampling(temperature, seed=seed)
    toy = ToyDrafter(seed)
    growing, draft = GrowingDraft(toy, CHAIN), DraftTree((), ())
    for _ in range(length):
        growth = growing.grow_on(draft, sampling)
        assert len(growth.tokens) == 1
        draft = add(draft, growth)
    assert (draft, toy.steps) == (draft_chain(ToyDrafter(seed), length, sampling), length)


@given(st.integers(0, 99))
def test_a_tree_grows_until_it_holds_what_is_likely_enough(seed: int) -> None:
    toy = ToyDrafter(seed)
    growing, draft = GrowingDraft(toy, TREE), DraftTree((), ())
    while (growth := growing.grow_on(draft, GREEDY)).tokens:
        draft = add(draft, growth)
    assert growing.grow_on(draft, GREEDY) == Growth()
    chances = [survival(toy, draft, node) for node in range(len(draft))]
    assert min(chances) >= TREE.survival - 1e-6
    assert len(draft) <= TREE.nodes
    if len(draft) < TREE.nodes:  # nothing likely was left out, but for what is not among a node's best
        for node in range(-1, len(draft)):
            text = [*toy.text, *(draft.tokens[step] for step in draft.path_to(node))]
            best, tokens = largest(np.exp(log_softmax(toy.logits(text)[None])), TREE.breadth)
            for token, chance in zip(tokens[0].tolist(), best[0].tolist(), strict=True):
                above = chances[node] if node >= 0 else 1.0
                assert draft.child_with(node, token) is not None or above * chance < TREE.survival + 1e-6


@given(st.integers(0, 99))
def test_a_step_gives_its_nodes_best_first(seed: int) -> None:
    toy = ToyDrafter(seed)
    growing, draft = GrowingDraft(toy, TREE), DraftTree((), ())
    for _ in range(3):
        known = len(draft)
        growth = growing.grow_on(draft, GREEDY)
        draft = add(draft, growth)
        chances = [survival(toy, draft, node) for node in range(known, len(draft))]
        assert chances == pytest.approx(sorted(chances, reverse=True))
        assert growing.chances(draft, GREEDY)[known:] == pytest.approx(chances, abs=1e-5)


@given(st.integers(0, 99))
def test_looking_and_stepping_by_hand_is_growing(seed: int) -> None:
    growing, draft = GrowingDraft(ToyDrafter(seed), TREE), DraftTree((), ())
    by_hand = GrowingDraft(ToyDrafter(seed), TREE)
    while (growth := growing.grow_on(draft, GREEDY)).tokens:
        if by_hand.offer(draft, GREEDY).tokens:
            assert by_hand.reach(draft, GREEDY) <= 1.0
        else:
            assert by_hand.reach(draft, GREEDY) > 0.0
            by_hand.expand(draft, GREEDY)
        assert by_hand.offer(draft, GREEDY) == growth
        draft = add(draft, growth)
    assert by_hand.offer(draft, GREEDY) == Growth()


def test_an_offer_takes_no_step_of_the_drafter() -> None:
    toy = ToyDrafter(3)
    guesser = TextGuesser()
    guesser.restart([1, 2, 3, 4, 1, 2])
    growing, draft = GrowingDraft(toy, TREE, guesser), DraftTree((), ())
    offered = growing.offer(draft, GREEDY)
    assert (offered.tokens[:2], toy.steps) == ((3, 4), 0)
    reach = 1.0 - growing.chances(add(draft, offered), GREEDY)[0]
    assert 0.0 < growing.reach(draft, GREEDY) == pytest.approx(reach)
    growing.expand(draft, GREEDY)
    assert toy.steps == 1
    after = growing.offer(draft, GREEDY)
    assert set(offered.tokens) < set(after.tokens)


@given(st.integers(0, 99), st.sampled_from([0.0, 0.05, 0.2, 0.5, 1.5]))
def test_an_offer_leaves_out_what_is_too_unlikely_to_pay_and_offers_it_when_it_does(seed: int, least: float) -> None:
    guesser = TextGuesser()
    guesser.restart([1, 2, 3, 4, 1, 2])
    toy = ToyDrafter(seed)
    growing, nothing = GrowingDraft(toy, TREE, guesser), DraftTree((), ())
    growing.commit([1, 2, 3, 4, 1, 2])
    growing.expand(nothing, GREEDY)
    few = add(nothing, growing.offer(nothing, GREEDY, least))
    assert all(chance >= least for chance in growing.chances(few, GREEDY))
    again = GrowingDraft(ToyDrafter(seed), TREE, guesser)
    again.commit([1, 2, 3, 4, 1, 2])
    again.expand(nothing, GREEDY)
    assert growing.offer(nothing, GREEDY) == again.offer(nothing, GREEDY)


@pytest.mark.parametrize("copying", [True, False])
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
@given(data=st.data())
def test_any_draft_is_gone_on_with_as_a_new_drafter_would(
    shape: GrowthShape, keeps: bool, copying: bool, data: st.DataObject
) -> None:
    seed = data.draw(st.integers(0, 9))
    sampling = data.draw(st.sampled_from([GREEDY, Sampling(0.8, seed=3), PENALISED, PENALISED_SAMPLES]))
    toy = ToyDrafter(seed, keeps=keeps)
    guesser = TextGuesser() if copying else None
    growing, draft = GrowingDraft(toy, shape, guesser), DraftTree((), ())

    def commit(tokens: Sequence[int]) -> None:
        growing.commit(tokens)
        if guesser is not None:
            guesser.extend(tokens)

    commit([1, 2, 3, 1, 2, 3, 1])
    for _ in range(data.draw(st.integers(1, 8))):
        action = data.draw(st.sampled_from(["grow", "grow", "commit", "leave", "prune", "other"]))
        if action == "grow":
            draft = add(draft, growing.grow_on(draft, sampling))
        elif action == "commit" and draft:
            node = data.draw(st.integers(0, len(draft) - 1))
            commit([draft.tokens[step] for step in draft.path_to(node)])
            draft = StreamedTree(draft.tokens, draft.parents).below(node)[0]
        elif action == "leave":
            tokens = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3))
            node = -1
            for token in tokens:
                node = draft.child_with(node, token) if node is not None else None  # type: ignore[assignment]
            commit(tokens)
            draft = StreamedTree(draft.tokens, draft.parents).below(node)[0] if node is not None else DraftTree((), ())
        elif action == "prune":
            draft = draft.pick(range(data.draw(st.integers(0, len(draft)))))
        elif action == "other":
            parent = len(draft) - 1 if shape is CHAIN else data.draw(st.integers(-1, len(draft) - 1))
            token = data.draw(st.integers(0, VOCAB - 1))
            if draft.child_with(parent, token) is None:
                draft = add(draft, Growth((token,), (parent,)))
    fresh = ToyDrafter(seed)
    fresh.text = list(toy.text)
    again = GrowingDraft(fresh, shape, guesser)
    assert growing.next_token(draft, sampling) == again.next_token(draft, sampling)
    if shape is CHAIN and guesser is None:
        grown, expected = growing.grow_on(draft, sampling), again.grow_on(draft, sampling)
        assert (grown.tokens, grown.parents) == (expected.tokens, expected.parents)
    elif shape is TREE:
        while (growth := growing.grow_on(draft, sampling)).tokens:
            draft = add(draft, growth)
        siblings = list(zip(draft.parents, draft.tokens, strict=True))
        assert len(set(siblings)) == len(siblings)


def test_what_a_verdict_confirms_is_not_computed_again() -> None:
    toy = ToyDrafter(5)
    growing, draft = GrowingDraft(toy, CHAIN), DraftTree((), ())
    for _ in range(6):
        draft = add(draft, growing.grow_on(draft, GREEDY))
    growing.commit(draft.tokens[:4])
    draft = StreamedTree(draft.tokens, draft.parents).below(3)[0]
    before = toy.steps
    growing.grow_on(draft, GREEDY)
    assert toy.steps == before + 1


def test_standalone_text_copies_what_is_likelier_than_the_drafters_choice() -> None:
    copied = 0
    for seed in range(40):
        toy, guesser = ToyDrafter(seed), TextGuesser()
        growing = GrowingDraft(toy, CHAIN, guesser)
        text = [1, 2, 3, 4, 5, 1, 2, 3, 4]
        growing.commit(text)
        guesser.restart([0, *text])
        own = log_softmax(toy.logits(toy.text)[None])[0]
        copy_chance = math.exp(guesser.copied([], 4)[1])  # type: ignore[index]
        written = growing.next_token(DraftTree((), ()), GREEDY)
        likeliest = int(own.argmax())
        if likeliest == 5:
            assert written.origin == TokenOrigin.BOTH
            assert math.exp(written.log_chance) == pytest.approx(1 - (1 - math.exp(own[5])) * (1 - copy_chance))
        elif math.exp(own[likeliest]) < copy_chance:
            assert (written.token, written.origin) == (5, TokenOrigin.COPY)
            copied += 1
            barred = growing.next_token(DraftTree((), ()), GREEDY, barred={5})
            assert (barred.token, barred.origin) == (likeliest, TokenOrigin.DRAFTER)
        else:
            assert (written.token, written.origin) == (likeliest, TokenOrigin.DRAFTER)
    assert copied > 5


@given(st.integers(0, 99), st.lists(st.integers(0, 2), min_size=6, max_size=30))
def test_copies_too_repeat_no_run_of_standalone_text(seed: int, text: list[int]) -> None:
    toy = ToyDrafter(seed)
    draft = ConversationDraft(lambda: cast(Any, toy), CHAIN, TextGuesser())
    GrowingDraft.commit(draft, text)
    draft.tree.guesser.restart(text * 3)  # type: ignore[union-attr]
    written: list[int] = []
    for _ in range(20):
        written.append(draft.write(DraftTree.chain(written), GREEDY).token)
    runs = [tuple(written[at : at + 6]) for at in range(len(written) - 5)]
    assert len(set(runs)) == len(runs)


@given(st.integers(0, 99), st.integers(1, 12), st.integers(0, 11))
def test_a_standalone_text_costs_a_step_a_token(seed: int, length: int, confirmed: int) -> None:
    toy = ToyDrafter(seed)
    growing = GrowingDraft(toy, TREE)
    written: list[int] = []
    for _ in range(length):
        written.append(growing.next_token(DraftTree.chain(written), GREEDY).token)
    assert (tuple(written), toy.steps) == (draft_chain(ToyDrafter(seed), length, GREEDY).tokens, length)
    confirmed = min(confirmed, length - 1)
    growing.commit(written[:confirmed])
    rest = written[confirmed:]
    for _ in range(2):
        rest.append(growing.next_token(DraftTree.chain(rest), GREEDY).token)
    assert toy.steps == length + 2
    assert (*written[:confirmed], *rest) == draft_chain(ToyDrafter(seed), length + 2, GREEDY).tokens


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_a_barred_token_gives_way_to_the_next_best(shape: GrowthShape) -> None:
    toy = ToyDrafter(3)
    growing = GrowingDraft(toy, shape)
    nothing = DraftTree((), ())
    ranked = np.argsort(-toy.logits(toy.text)).tolist()
    assert growing.next_token(nothing, GREEDY, barred={ranked[1]}).token == ranked[0]
    second = growing.next_token(nothing, GREEDY, barred={ranked[0]}).token
    assert second == ranked[1]
    after = growing.next_token(DraftTree.chain([second]), GREEDY).token
    assert after == int(toy.logits([*toy.text, second]).argmax())
