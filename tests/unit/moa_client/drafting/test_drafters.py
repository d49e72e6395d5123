from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from moa_client.conversation.answer_figures import Figures
from moa_client.drafting.drafters import LookupDrafter
from moa_shared.drafting import Growth
from moa_shared.drafting.guesses.copying import chance_of_copy
from moa_shared.sampling.settings import Sampling
from moa_shared.tree.draft_tree import DraftTree


def test_look_up_copies_what_followed_the_longest_match() -> None:
    drafter = LookupDrafter(length=3)
    drafter.restart([1, 2, 3, 4, 5, 9, 3, 7, 7, 2])
    drafter.commit([3])
    assert drafter.draft(Sampling()).tokens == (4, 5, 9)  # "2 3" is longer than the later "3"
    drafter.commit([8])
    assert drafter.draft(Sampling()).tokens == ()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_a_look_up_is_a_copy_from_the_conversation(tokens: list[int]) -> None:
    drafter = LookupDrafter(length=2)
    drafter.restart(tokens)
    chain = list(drafter.draft(Sampling()).tokens)
    assert not chain or any(
        tokens[at - 1] == tokens[-1] and tokens[at : at + len(chain)] == chain for at in range(1, len(tokens))
    )


def test_figures_make_one_line() -> None:
    figures = Figures(
        tokens=21,
        verdicts=11,
        accepted=10,
        seconds=2.0,
        first_token_seconds=0.25,
        up_bytes=420,
        down_bytes=2100,
        cpu_seconds=0.105,
    )
    assert figures.acceptance_length == 2.0
    assert figures.line() == ("21 tokens in 2.0 s (10 tokens/s), first after 250 ms; 48 % drafted here; 2.1 kB down")
    assert figures.details() == (
        "2.00 tokens a verification (11 steps), 20 bytes up and 100 down a token, 5.0 ms of this device's CPU a token"
    )
    assert Figures().line() == "0 tokens"
    assert Figures().details() == ""


def test_look_up_continues_below_any_draft_and_writes_standalone() -> None:
    drafter = LookupDrafter(length=2)
    drafter.restart([1, 2, 3, 4, 5, 9, 1, 2])
    assert drafter.grow(DraftTree.chain([]), Sampling()) == Growth((3, 4), (-1, 0), (0, 1))
    assert drafter.grow(DraftTree.chain([3, 4]), Sampling()) == Growth((5, 9), (1, 2), (0, 1))
    assert drafter.grow(DraftTree((3, 4, 7), (-1, 0, 0)), Sampling()) == Growth()
    assert drafter.write(DraftTree.chain([3]), Sampling()) == (4, chance_of_copy(3))
    assert drafter.write(DraftTree.chain([8]), Sampling()) is None
