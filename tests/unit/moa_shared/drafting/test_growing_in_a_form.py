"""Drafts of an answer that must have a form: no node that the form forbids, and what it forces without the drafter."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.constraints.compiler import DraftForm
from moa_shared.drafting.growing import CHAIN, ConversationDraft, GrowingDraft, GrowthShape
from moa_shared.drafting.guesses import TextGuesser
from moa_shared.sampling.coupling import select
from moa_shared.sampling.settings import Constraint, ConstraintKind, Sampling
from moa_shared.tree import DraftTree

from tests.support.toy_forms import FIRST, ToyForms
from tests.unit.moa_shared.drafting.test_growing import ToyDrafter

END = 95
FORM = Constraint(ConstraintKind.REGEX, r"kind: (red|green|blue)( and (red|green|blue))?; size: [0-9]{2}\.")
TREE = GrowthShape(breadth=3, nodes=40, survival=0.01)
Rows = npt.NDArray[np.float32]
START = 3  # of the answer


class Table(ToyDrafter):
    """A drafter whose logits depend on the newest token, as those of its target do; it keeps no draft."""

    def __init__(self, seed: int, token_ids: npt.NDArray[np.int64] | None = None) -> None:
        super().__init__(seed, keeps=False)
        self.text, self.token_ids = [10, 11, 12], token_ids  # type: ignore[assignment]
        self.table = np.random.default_rng(seed).standard_normal((END + 1, END + 1), np.float32)

    def logits(self, text: Sequence[int]) -> Rows:
        row: Rows = self.table[text[-1]]
        return row if self.token_ids is None else row[self.token_ids]

    def crop(self, length: int) -> None:
        del self.text[length:]

    def append_memory(self, start: int, rows: Rows) -> None:
        raise AssertionError("it reads none")

    append_reused_state = append_memory

    def catch_up(self, most: int) -> bool:
        return True


def token(character: str) -> int:
    return ord(character) - FIRST


def whole(drafter: Table, sampling: Sampling) -> list[int]:
    """What the target says."""
    form, text = ToyForms(END).begin(FORM), list(drafter.tokens)
    while True:
        form.advance(text[START + form.read :])
        allowed = form.allowed(DraftTree((), ()))
        chosen = select(drafter.table[text[-1:]], [len(text)], sampling, None, allowed)
        if chosen == [END]:
            return text[START:]
        text += chosen


@given(
    st.integers(0, 99),
    st.sampled_from([Sampling(), Sampling(1.0, seed=3)]),
    st.sampled_from([CHAIN, TREE]),
    st.sampled_from([None, 1, 4]),
)
def test_a_drafter_that_agrees_drafts_what_the_target_chooses_in_the_form(
    seed: int, sampling: Sampling, shape: GrowthShape, most_depth: int | None
) -> None:
    drafter = Table(seed)
    drafter.most_depth = most_depth
    expected = whole(drafter, sampling)
    growing, draft_form = GrowingDraft(drafter, shape), DraftForm(ToyForms(END).begin(FORM))
    said = list[int]()
    while len(said) < len(expected):
        growing.follow(draft_form.after(said))
        draft = DraftTree((), ())
        for _ in range(2):
            growth = growing.grow_on(draft, sampling)
            draft = DraftTree(draft.tokens + growth.tokens, draft.parents + growth.parents)
        alone = ToyForms(END).begin(FORM)
        alone.advance(said)
        for path in draft.paths:
            assert alone.permitted(path[:-1], path[-1:]) == list(path[-1:])
        node, taken = -1, 0
        while taken < len(expected) - len(said):
            child = draft.child_with(node, expected[len(said) + taken])
            if child is None:
                break
            node, taken = child, taken + 1
        assert taken  # it agrees with the target
        new = expected[len(said) : len(said) + taken]
        growing.commit(new)
        said += new


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_what_is_forced_needs_no_step_of_the_drafter(shape: GrowthShape) -> None:
    drafter = Table(1)
    growing = GrowingDraft(drafter, shape)
    growing.follow(ToyForms(END).begin(FORM))
    growth = growing.grow_on(DraftTree((), ()), Sampling())
    assert (growth.tokens, growth.parents, drafter.steps) == (tuple(map(token, "kind: ")), tuple(range(-1, 5)), 0)
    assert not growing.reach(DraftTree((), ()), Sampling()) > 1


def test_what_the_text_suggests_is_drafted_only_where_the_form_allows_it() -> None:
    guesser = TextGuesser()
    draft = ConversationDraft(lambda: Table(1), TREE, guesser)
    text = [token(each) for each in "kind: red; kind: rex kind: re"]
    draft.restart(text)
    form = DraftForm(ToyForms(END).begin(FORM))
    draft.follow(form.after([token(each) for each in "kind: re"]))
    assert draft.offer(DraftTree((), ()), Sampling()).tokens[0] == token("d")  # and not the newer x


def test_standalone_text_is_of_the_form_even_where_the_drafter_lacks_the_token() -> None:
    for token_ids in (None, np.array([token("x"), token("r"), token("e"), token(";")])):
        draft = ConversationDraft(lambda ids=token_ids: Table(1, ids), CHAIN)  # type: ignore[misc]
        draft.restart([10, 11, 12])
        draft.follow(ToyForms(END).begin(FORM))
        written = list[int]()
        for _ in range(12):
            written.append(draft.write(DraftTree.chain(written), Sampling(), guarded=False).token)
        alone = ToyForms(END).begin(FORM)
        alone.advance(written)
        assert alone.read == 12


def test_a_text_that_is_not_of_the_form_is_drafted_without_it() -> None:
    form = DraftForm(ToyForms(END).begin(FORM))
    assert form.after([token("k")]) is not None
    assert form.after([token("k"), token("x")]) is None
    assert form.after([token("k"), token("x"), token("y")]) is None
