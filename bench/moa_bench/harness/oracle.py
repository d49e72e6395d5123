"""The oracle drafter: replays a text that the target is known to write, with errors at a chosen rate.

It takes the place of a `DraftState`, and measures the protocol apart from any drafter's quality. What it proposes at a
position depends on the text, the seed and that position only.
"""

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from moa_client.device.loading import Device, Drafting
from moa_client.drafting.drafters import MoaDrafter
from moa_client.drafting.settings import DraftingSettings
from moa_shared.drafter.checkpoint import shipped_drafter
from moa_shared.drafter.kinds.state import BaseState
from moa_shared.drafting.growing import CHAIN, GrowthShape
from moa_shared.models import ModelFiles

Rows = npt.NDArray[np.float32]

# Of its misses, how many a tree has as its second guess. With 0.8 a tree of 60 nodes in eight levels then brings 5.9
# tokens a forward.
SECOND_GUESS = 0.5
DRAFT_MS = 5.0  # of a draft step: of a device somewhat slower than one core here

GUESSED = 3  # a token of its script, and the wrong ones that may stand for it: those that follow in the vocabulary
LEAST_STATED = 0.05  # chance, so that one that is never right is asked too
_SURE = 30.0  # logit of what is certain, among zeros: a log-probability of 0 in float32
ROUNDS = DraftingSettings(drafting="device", rounds=5)
"""Synchronous rounds: what a forward is fed does not depend on how fast anything was."""


@dataclass(frozen=True, slots=True)
class Script:
    tokens: tuple[int, ...]  # of the whole conversation, prompt included, as the target writes it
    acceptance: float  # probability that the proposal at a position is right
    seed: int  # decides where it is wrong
    vocab_size: int
    second: float = 0.0  # probability that its second guess is right where the first is wrong; 0: it has none
    is_sure: bool = False  # it states that its guesses are certain, and not how often they are right

    def right_at(self, position: int) -> bool:
        return random.Random(f"{self.seed}:{position}").random() < self.acceptance

    def guesses(self, position: int, *, on_text: bool) -> dict[int, float]:
        """What it proposes at a position, the first guess first, with the chances that it states."""
        stated = 1.0 if self.is_sure else max(self.acceptance, LEAST_STATED)
        if position >= len(self.tokens):
            return {0: stated}
        token, wrong = self.tokens[position], (self.tokens[position] + 1) % self.vocab_size
        is_right = on_text and self.right_at(position)
        first = token if is_right else wrong
        if not self.second:
            return {first: stated}
        found = on_text and random.Random(f"{self.seed}:{position}:second").random() < self.second
        second = token if found and not is_right else (self.tokens[position] + 2) % self.vocab_size
        return {first: self.acceptance, second: (1 - self.acceptance) * self.second}


class OracleDrafter(BaseState):
    """A drafter that follows a script; a step is a device's own computation, so it sleeps for the rest of `step_ms`."""

    def __init__(self, script: Script, step_ms: float = 0.0) -> None:
        near = {(token + beside) % script.vocab_size for token in script.tokens for beside in range(GUESSED)}
        # What its script can guess: to rank a whole vocabulary would take as long as its step (13 ms of Gemma's).
        token_ids = sorted(near | {0})
        super().__init__(np.array(token_ids, np.int64))
        self.script = script
        self._step_s = step_ms / 1e3
        self._columns = {token: column for column, token in enumerate(token_ids)}
        self._agreed = 0  # committed tokens that are the script's
        self._on_text: list[bool] = []  # whether the path of each draft node is the script's

    def extend(self, tokens: Sequence[int]) -> tuple[int, ...] | None:
        for token in tokens:
            place = len(self.tokens)
            if self._agreed == place < len(self.script.tokens) and self.script.tokens[place] == token:
                self._agreed += 1
            self.tokens.append(token)
        kept = self._nodes.advance(tokens)[1] if self._drafting else None
        self._on_text = [self._on_text[node] for node in kept or ()]
        self._drafting = kept is not None
        return kept

    def crop(self, length: int) -> None:
        super().crop(length)
        self._agreed = min(self._agreed, length)

    @property
    def has_left_the_script(self) -> bool:
        return self._agreed < len(self.tokens)

    def begin(self) -> Rows:
        """Logits [1, token ids] of the token after the newest committed one."""
        self._begin()
        self._drafting = True
        return self._step([(0, not self.has_left_the_script)])

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        """Logits [nodes, token ids] after each new node."""
        known = self._add(tokens, parents)
        for token, parent in zip(tokens, parents, strict=True):
            on_text = self._on_text[parent] if parent >= 0 else not self.has_left_the_script
            position = self.next_position + self._nodes.depths[len(self._on_text)] - 1
            right = on_text and position < len(self.script.tokens) and self.script.tokens[position] == token
            self._on_text.append(right)
        return self._step(list(zip(self._nodes.depths, self._on_text, strict=True))[known:])

    def _drop_draft(self) -> None:
        super()._drop_draft()
        self._on_text.clear()

    def _step(self, rows: Sequence[tuple[int, bool]]) -> Rows:
        ready = time.perf_counter() + self._step_s
        logits = np.zeros((len(rows), len(self._columns)), dtype=np.float32)
        for row, (depth, on_text) in enumerate(rows):
            guesses = self.script.guesses(self.next_position + depth, on_text=on_text)
            other = (1 - sum(guesses.values())) / max(1, len(self._columns) - len(guesses))
            for token, chance in guesses.items():
                logits[row, self._columns[token]] = min(_SURE, math.log(chance / other)) if other > 0 else _SURE
        if (left := ready - time.perf_counter()) > 0:
            time.sleep(left)
        return logits


def with_oracle(device: Device, script: Script, draft_ms: float, *, twice: bool = False) -> Device:
    """The same device with an oracle in its drafter's place; memory comes as for that drafter.

    `twice`: it guesses twice, and drafts trees.
    """
    shape, planes = GrowthShape(breadth=2) if twice else CHAIN, device.drafting.planes if device.drafting else {}

    def new_drafter() -> MoaDrafter:
        return MoaDrafter(lambda: OracleDrafter(script, draft_ms), reads_memory=bool(planes), shape=shape)

    drafting = Drafting(new_drafter) if device.drafting is None else replace(device.drafting, new_drafter=new_drafter)
    return replace(device, drafting=drafting)


def has_no_drafter(files: ModelFiles, named: Mapping[str, Path]) -> bool:
    """Whether oracles draft for a target: none comes with moa for it, and a user names none."""
    return not named and shipped_drafter(files.fingerprint) is None
