"""The forms of answers on a device: followed once they are compiled, and done without where they cannot be."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from moa_client.drafting.drafters import ConversationForms, DeviceForms, MoaDrafter
from moa_shared.constraints.constrained_text import ConstrainedText
from moa_shared.drafting import GrowthShape
from moa_shared.drafting.base import Rows
from moa_shared.sampling.constraint import Constraint, choice_of
from moa_shared.sampling.settings import Sampling
from moa_shared.tree.draft_tree import DraftTree

from tests.support.recording_drafter import RecordingDrafter
from tests.support.toy_forms import FIRST, ToyForms

END = 95
CHOICE = choice_of(["red apple", "red pear", "green pear"])


def tokens_of(text: str) -> list[int]:
    return [ord(each) - FIRST for each in text]


class Compiler(ToyForms):
    """Waits until it may compile."""

    def __init__(self) -> None:
        super().__init__(END)
        self.may = threading.Event()
        self.begun = 0

    def begin(self, constraint: Constraint) -> ConstrainedText:
        self.begun += 1
        assert self.may.wait(20)
        return super().begin(constraint)


class Flat(RecordingDrafter):
    """Finds all tokens equally likely."""

    def begin(self) -> Rows:
        return np.zeros((1, END + 1), np.float32)

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        return np.zeros((len(tokens), END + 1), np.float32)


def forms(compiler: ToyForms | None) -> tuple[DeviceForms, ConversationForms]:
    device = DeviceForms(lambda: compiler.as_compiler() if compiler is not None else None)
    return device, ConversationForms(device)


def wait_for(device: DeviceForms) -> None:
    """Until the thread has done what it was asked before."""
    device.begin(CHOICE).result(20)


def sampling(start: int) -> Sampling:
    return Sampling(constraint=CHOICE).within(start)


def test_drafts_keep_to_the_form_as_soon_as_it_is_compiled() -> None:
    compiler = Compiler()
    device, conversation = forms(compiler)
    drafter = MoaDrafter(
        Flat, lambda *_: DraftTree((), ()), reads_memory=False, shape=GrowthShape(3, 8, 0.001), forms=conversation
    )
    question = tokens_of("What?")
    drafter.restart([*question, *tokens_of("r")])
    assert drafter.grow(DraftTree((), ()), sampling(5)).tokens != ()  # anything
    compiler.may.set()
    wait_for(device)
    assert drafter.grow(DraftTree((), ()), sampling(5)).tokens == tuple(tokens_of("ed "))
    drafter.commit(tokens_of("ed p"))
    assert drafter.grow(DraftTree((), ()), sampling(5)).tokens[:3] == tuple(tokens_of("ear"))
    assert drafter.write(DraftTree.chain(tokens_of("e")), sampling(5)) == (tokens_of("a")[0], 1.0)
    assert len(drafter.grow(DraftTree((), ()), Sampling()).tokens) == 3  # the next answer has none
