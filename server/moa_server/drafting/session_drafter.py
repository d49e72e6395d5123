"""The drafter of one session, on the server. Runs only on the inference thread.

State: a drafter's state and its draft in flight, how far its rows go, and how much of what it promised
came true. Invariants: it reads rows only of tokens in the target's cache; nodes that the device guessed come first, and
what both guess is the device's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from moa_shared.constraints.compiler import DraftForm
from moa_shared.drafting.estimates import AcceptanceEstimate, Smoothed
from moa_shared.drafting.growing import ConversationDraft, GrowthShape
from moa_shared.drafting.guesses import TextGuesser
from moa_shared.programs.machine import ms_since
from moa_shared.protocol.messages import Plane
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import ROOT, DraftTree

from moa_server.drafting.draft_decision import GrowthRule, OwnDrafter, Rows

if TYPE_CHECKING:
    from moa_shared.constraints.constrained_text import ConstrainedText

ReadRows = Callable[[Plane, int, int], Rows]  # of a plane, of the positions from the first to before the second

SHAPE = GrowthShape(breadth=4, nodes=64)
# Tokens that the first step before a forward finds where it looks at the right place, and the share of these that each
# later one finds: of the default drafter with n-grams (docs/adr/0026-ngrams.md), until a drafter's own are counted.
FOUND = 0.57
FOUND_LATER = 0.74
# Of a drafter that guesses a block in a step: published ones find 3.2 (chat) to 5.5 (code) by their authors' tables.
FOUND_IN_BLOCK = 2.0
NODES = 2.0  # of a place, that are worth their rows, until those of a drafter are counted
FOUND_WEIGHT = 8.0  # so that a few misses in a row, which are common, do not stop a good drafter
# Rows of a prompt that it reads: all rows take a tenth of the prompt's time before the second token can come, and with
# these few the drafts were as good (docs/adr/0024-drafts-on-the-server.md).
PROMPT_ROWS = {Plane.MEMORY: 4, Plane.REUSED_STATE: 16}
# Of an answer it reads the newest memory rows whenever so many have come; the others it hardly misses, since it reads
# the tokens themselves. With these two of four it takes 0.5 ms less a step and is right 0.4 % less often than with all,
# and reading takes no longer if it has not drafted for a while (docs/adr/0024-drafts-on-the-server.md).
ROWS_TOGETHER = {Plane.MEMORY: 4, Plane.REUSED_STATE: 1}
MOST_UNREAD = 64  # rows that came since it last drafted; of a longer text, a new question's, it begins again
ROWS_READ = {Plane.MEMORY: 2, Plane.REUSED_STATE: MOST_UNREAD}
# Tokens that the drafters of all sessions together read before a forward, so that a long prompt does not stall them: at
# 8B, about 0.13 s of EAGLE-3 and 0.02 s of a drafter of blocks.
ROWS_A_FORWARD = 64
SLOW = 0.998  # a decay that remembers about 500 verifications: of many sessions
MOST_COPIED = 1024  # keys and values of the target, which a drafter reads as they are: 5 to 10 ms
FEW_TOKENS = 16  # whose reading is typical of a step; a prompt's is not


class FoundTokens:
    """How many tokens steps find where they look at the right place.

    What later steps find is a share of what the first one does: a drafter whose first step turns out better than it was
    taken for is asked for later ones too. `first`: of the first step; `later`: the share of each later one, until they
    are counted.
    """

    def __init__(self, first: float, later: float, most: float, decay: float = 0.98) -> None:
        self._first = AcceptanceEstimate(first, FOUND_WEIGHT, decay, most)
        self._later = AcceptanceEstimate(later, FOUND_WEIGHT, decay, most)
        self._most = most

    def of_step(self, step: int) -> float:
        first = self._first.mean
        return min(self._most, first * self._later.mean) if step else first

    def learn(self, guess: Guess, right: Sequence[int]) -> None:
        """The target has chosen. `right`: of each right node, the number of the step that found it."""
        self._later.add(sum(step > 0 for step in right), self._first.mean * sum(guess.reaches[1:]))
        self._first.add(sum(step == 0 for step in right), sum(guess.reaches[:1]))

    def copy(self) -> FoundTokens:
        """For one session, which begins with what is known."""
        return FoundTokens(self._first.mean, self._later.mean, self._most)


class DrafterRecord:
    """What all sessions have shown of one kind of drafter: what its steps take, and how often it is right.

    `step_ms`: until one has been measured. `block_levels`: as of `OwnDrafter`.
    """

    def __init__(self, step_ms: float, block_levels: int = 0) -> None:
        self.step_ms = Smoothed(step_ms)
        self.follow_ms = Smoothed(step_ms / 4)
        first = min(FOUND_IN_BLOCK, FOUND * block_levels) if block_levels else FOUND
        self.found = FoundTokens(first, FOUND_LATER, max(1, block_levels), SLOW)
        # Nodes of a step where it looks at the right place, counted as the tokens that it finds there are.
        self.nodes = AcceptanceEstimate(NODES + first - 1 if block_levels else NODES, FOUND_WEIGHT, SLOW, SHAPE.nodes)
        # Tokens that were right over tokens that were promised. One that is never right has lost half of its trust
        # after two that it promised.
        self.trust = AcceptanceEstimate(1.0, decay=SLOW)


class Guess(NamedTuple):
    """What the drafter adds to a draft."""

    tree: DraftTree  # the device's nodes, then its own
    own: int  # how many these are
    promised: float  # the sum of their chances
    reaches: tuple[float, ...]  # of each step, the chance that it looked at the right place
    steps: tuple[int, ...]  # for each of its own nodes, the number of the step that found it; -1: it was known before


class ReadingRoom:
    """How much drafters may still read before a forward."""

    def __init__(self) -> None:
        self._rows = ROWS_A_FORWARD

    def take(self, wanted: int) -> int:
        """How many of these tokens may be read now: those that a verdict brings, in any case."""
        rows = min(wanted, max(self._rows, FEW_TOKENS))
        self._rows -= rows
        return rows


class SessionDrafter:
    def __init__(self, drafter: OwnDrafter, record: DrafterRecord, planes: Sequence[Plane]) -> None:
        self._drafter = drafter
        self._guesser = TextGuesser(drafter.ngrams)
        self._draft = self._new_draft()
        self._read = dict.fromkeys(planes, 0)  # rows before these positions were read, or passed over
        self._record = record
        self._found = record.found.copy()
        self._trust = AcceptanceEstimate(record.trust.mean)
        self._unread = 0  # tokens committed since the last step
        self._form: ConstrainedText | None = None  # of the answer that it drafts, and its own copy
        self._draft_form: DraftForm | None = None

    @property
    def nbytes(self) -> int:
        return self._drafter.most_nbytes(self._draft.state.next_position)

    def _new_draft(self) -> ConversationDraft:
        return ConversationDraft(self._drafter.new, SHAPE, self._guesser, self._drafter.trial)

    def tell(self, base: int, tokens: Sequence[int]) -> None:
        """Sets the committed tokens from position `base` on; what was before stays."""
        if base and base == self._draft.state.next_position:
            self._draft.commit(tokens)
        else:
            common = self._draft.restart([*self._draft.state.tokens[:base], *tokens])
            self._read = {plane: min(read, common) for plane, read in self._read.items()}
        self._unread += len(tokens)

    def guess(
        self,
        arrived: DraftTree,
        covered: float,
        sampling: Sampling,
        rule: GrowthRule,
        read_rows: ReadRows,
        cached: int,
        room: ReadingRoom,
        form: ConstrainedText | None = None,
    ) -> Guess:
        """Adds nodes to the draft that has arrived, as far as they pay.

        While the drafter has not read all of the text, it reads on, and only what the text suggests is drafted.
        `covered`: the chance that the next token is among the arrived nodes. `read_rows`: of the target; `cached`:
        those before this position exist.
        """
        self._follow_form(form, sampling)
        pool = arrived
        reaches: list[float] = []
        steps: list[int] = []
        record, trust, trial = self._record, self._trust.mean, self._drafter.trial
        least = rule.least_chance / trust if trust else 1.0  # where time is dear, looking for more would cost it too
        typical = self._unread <= FEW_TOKENS
        step_ms: float | None = None  # of the newest step
        while True:
            began = time.perf_counter()
            offered = self._draft.offer(pool, sampling, least)
            if step_ms is not None:  # what a block says of its nodes is looked up as they are offered
                record.step_ms.add(step_ms + (ms_since(began) if self._drafter.block_levels else 0.0))
            pool = DraftTree(pool.tokens + offered.tokens, pool.parents + offered.parents)
            steps += [len(reaches) - 1] * len(offered.tokens)
            if trial.is_dropped or len(steps) >= rule.most_nodes:
                break
            found, later = self._found.of_step(len(reaches)), self._found.of_step(len(reaches) + 1)
            if trial.is_open and trial.lacks_tokens and not reaches:
                found = max(found, FOUND)  # one that is not right would hardly be asked, and never be judged
            pays = partial(
                rule.pays, found=found, nodes=record.nodes.mean, later=later, drafted=len(steps), first=not reaches
            )
            if not pays(1.0):
                break
            reach = self._draft.reach(pool, sampling) * (1.0 if reaches else 1.0 - covered)
            if not reach or not pays(reach):
                break
            if not reaches:
                began = time.perf_counter()
                if not self._follow(read_rows, cached, room):
                    break
                if typical:
                    record.follow_ms.add(ms_since(began))
            began = time.perf_counter()
            self._draft.expand(pool, sampling)
            step_ms = ms_since(began) if typical or reaches else None
            reaches.append(reach)
        first = len(arrived)
        chances = self._draft.chances(pool, sampling)[first:]  # a later step may have thought better of a node
        if self._drafter.block_levels:  # nothing of such a draft stays anyway, and its logits are large
            self._draft.drop()
        if not steps:
            return Guess(arrived, 0, 0.0, tuple(reaches), ())
        chosen = rule.choose([trust * chance for chance in chances])
        own = [first + node for node in chosen]
        promised = sum(chances[node] for node in chosen)
        tree = pool.pick([*range(first), *own])
        return Guess(tree, len(own), promised, tuple(reaches), tuple(steps[node] for node in chosen))

    def learn_guess(self, guess: Guess, taken: Sequence[int]) -> None:
        right = _own_path(guess, taken)
        for trust in (self._trust, self._record.trust):
            trust.add(len(right), guess.promised)  # of nothing it fades
        for found in (self._found, self._record.found):
            found.learn(guess, right)
        if guess.reaches:
            self._record.nodes.add(sum(step >= 0 for step in guess.steps), sum(guess.reaches))

    def _follow_form(self, form: ConstrainedText | None, sampling: Sampling) -> None:
        if form is not self._form:
            self._form, self._draft_form = form, DraftForm(form) if form is not None else None
        answer = self._draft.state.tokens[sampling.answer_start :]
        self._draft.follow(self._draft_form.after(answer) if self._draft_form is not None else None)

    def _follow(self, read_rows: ReadRows, cached: int, room: ReadingRoom) -> bool:
        """Reads rows that have come, and the text, as far as there is room; whether that was all."""
        most = room.take(max(1, self._unread))
        if self._drafter.reads_all_rows:
            self._follow_all(read_rows, cached, most)
            has_rows = min(self._read.values()) >= cached
        else:
            self._follow_some(read_rows, cached)
            has_rows = True  # it makes do with these
        has_caught_up = self._draft.state.catch_up(most) and has_rows
        if has_caught_up:
            self._unread = 0
        return has_caught_up

    def _follow_all(self, read_rows: ReadRows, cached: int, most: int) -> None:
        for plane, read in self._read.items():
            if self._drafter.reads_target_cache:
                most, read = MOST_COPIED, max(read, cached - 1) if plane is Plane.REUSED_STATE else read
            stop = min(read + most, cached)
            if read < stop:
                self._draft.remember(read, read_rows(plane, read, stop), state=plane is Plane.REUSED_STATE)
                self._read[plane] = stop

    def _follow_some(self, read_rows: ReadRows, cached: int) -> None:
        if 0 < min(self._read.values()) < cached - MOST_UNREAD:
            text, form = self._draft.state.tokens, self._draft.tree.form
            self._draft = self._new_draft()
            self._draft.restart(text)
            self._draft.follow(form)
            self._read = dict.fromkeys(self._read, 0)
        for plane, read in self._read.items():
            if not read or cached - read >= ROWS_TOGETHER[plane]:
                most = ROWS_READ[plane] if read else PROMPT_ROWS[plane]
                start = max(read, cached - most)
                self._draft.remember(start, read_rows(plane, start, cached), state=plane is Plane.REUSED_STATE)
                self._read[plane] = cached


def _own_path(guess: Guess, taken: Sequence[int]) -> list[int]:
    """The steps that found the server's own nodes among those that the text went through."""
    first, node, steps = len(guess.tree) - guess.own, ROOT, []
    for token in taken:
        child = guess.tree.child_with(node, token)
        if child is None:
            break
        node = child
        if node >= first:
            steps.append(guess.steps[node - first])
    return steps
