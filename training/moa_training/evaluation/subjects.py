"""What is under test: a drafter that drafts for a target, and writes without it, as a client would have it do.

The target's own text is written once; then it is replayed. The drafter has the tokens and the memory rows that the
client would hold. What of a draft follows the text is counted: this is the real verification, since a verdict depends
only on the text; the noise by which it was sampled is that by which drafts are ranked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from moa_shared.drafter.checkpoint import Checkpoint
from moa_shared.drafter.companion import Companion
from moa_shared.drafting.drafts import ConversationDrafter, Drafter, TreeShape, draft_chain, draft_tree
from moa_shared.drafting.estimates import TokenConfidence, TokenOrigin, WrittenToken
from moa_shared.drafting.growing import CHAIN, ConversationDraft
from moa_shared.drafting.guesses import LOOKUP_LONGEST, TextGuesser
from moa_shared.models.network.network import Weights
from moa_shared.protocol.messages import Plane, ThinMemory
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree, longest_path

from moa_training.teacher.target_reader import GREEDY, TargetReader, sampling_for


@dataclass(frozen=True, slots=True)
class DraftShape:
    """How drafts are made: a chain of `nodes` where `tree` is None."""

    nodes: int
    tree: TreeShape | None = None

    @property
    def name(self) -> str:
        return f"{'chain' if self.tree is None else 'tree'} of {self.nodes}"


@dataclass(slots=True)
class Acceptance:
    """Counts over verifications: `accepted`, verifications by number of accepted drafts."""

    accepted: list[int] = field(default_factory=list)
    draft_seconds: float = field(default=0.0, compare=False)  # spent on drafts, all together

    def add(self, count: int, times: int = 1) -> None:
        self.accepted += [0] * (count + 1 - len(self.accepted))
        self.accepted[count] += times

    def merge(self, other: Acceptance) -> None:
        self.draft_seconds += other.draft_seconds
        for count, times in enumerate(other.accepted):
            self.add(count, times)

    @property
    def forwards(self) -> int:
        return sum(self.accepted)

    @property
    def length(self) -> float:
        """Mean acceptance length: accepted drafts and the bonus token, per target forward."""
        drafts = sum(count * times for count, times in enumerate(self.accepted))
        return drafts / self.forwards + 1 if self.forwards else 0.0

    @property
    def draft_ms(self) -> float:
        """Mean time of a draft, reading what was committed since the last one included."""
        return 1e3 * self.draft_seconds / self.forwards if self.forwards else 0.0

    @property
    def by_position(self) -> list[float]:
        """Share of accepted guesses at each depth, among those whose parents were accepted."""
        reached = [sum(self.accepted[depth:]) for depth in range(len(self.accepted))]
        return [after / before for before, after in pairwise(reached) if before]


def make_draft(drafter: Drafter, shape: DraftShape, room: int, sampling: Sampling) -> DraftTree:
    """A draft of a shape; of a chain at most `room` nodes."""
    if shape.tree is not None:
        return draft_tree(drafter, shape.tree, sampling)
    return draft_chain(drafter, min(shape.nodes, room), sampling)


def verify(tree: DraftTree, ids: Sequence[int], newest: int, counts: Acceptance) -> int:
    """Counts what of a draft follows the text; the tokens committed."""
    # The text's token after each node is meaningful along the text, which is all that a walk follows.
    after = [ids[place] if (place := newest + depth + 1) < len(ids) else -1 for depth in tree.depths]
    path, _ = longest_path(tree, ids[newest + 1], after)
    counts.add(len(path))
    return len(path) + 1


Rows = npt.NDArray[np.float32]
NextToken = Callable[[Sequence[int]], WrittenToken | None]  # after standalone text


@dataclass(frozen=True, slots=True)
class StandaloneRun:
    """What a drafter wrote without the server, up to its own end of the answer."""

    written: tuple[WrittenToken, ...]
    right: int  # how many of the first tokens are the target's
    judged: int  # how many can be compared: the target's answer may have been cut off

    @property
    def tokens(self) -> list[int]:
        return [each.token for each in self.written]


@dataclass(frozen=True, slots=True)
class WritingLimit:
    after: int  # tokens after it at most
    whole: int | None = None  # tokens of the answer at most, with those before the cut; None: any number

    def left(self, cut: int) -> int:
        return self.after if self.whole is None else max(0, min(self.after, self.whole - cut))


class _Subject:
    """What is under test, with the target that it drafts for; `stop_ids` end an answer."""

    fingerprint = ""  # of the drafter; empty where there is none
    confidence: TokenConfidence | None = None  # the drafter's; None: its own chances are taken
    reads_memory = False  # whether it is something else without memory
    reads_last_hidden = False  # whether that is made from the target's last hidden states, which no server sends

    def __init__(self, reader: TargetReader, stop_ids: Collection[int] = (), sampling: Sampling = GREEDY) -> None:
        self.reader = reader
        self._stop_ids, self._sampling = frozenset(stop_ids), sampling

    def _run(self, following: NextToken, answer: Sequence[int], cut: int, room: WritingLimit) -> StandaloneRun:
        """What is written after a cut, compared with the rest of the answer."""
        written: list[WrittenToken] = []
        tokens: list[int] = []
        length = room.left(cut)
        while len(tokens) < length and not self._stop_ids.intersection(tokens[-1:]):
            found = following(tokens)
            if found is None:
                break
            written.append(found)
            tokens.append(found.token)
        rest = answer[cut : cut + length]
        both = min(len(tokens), len(rest))
        judged = len(tokens) if self._stop_ids.intersection(answer[-1:]) else both
        right = next((at for at in range(both) if tokens[at] != rest[at]), both)
        return StandaloneRun(tuple(written), right, judged)


class DrafterSubject(_Subject):
    """A checkpoint of any kind.

    Where it is guarded, its standalone text repeats no run of tokens, as in the client (`barred_after`).
    """

    reads_memory = True

    def __init__(
        self,
        checkpoint: Checkpoint,
        reader: TargetReader,
        target: Weights,
        weights: str,
        stop_ids: Collection[int] = (),
        *,
        guarded: bool = True,
        sampling: Sampling = GREEDY,
    ) -> None:
        super().__init__(reader, stop_ids, sampling)
        self.fingerprint = checkpoint.fingerprint
        self._guarded = guarded
        self._copies = True  # where the conversation has likelier ones
        self.reads_last_hidden = checkpoint.config.reads_last_hidden
        self._rows = checkpoint.rows(weights) if checkpoint.config.memory_width else None
        self._new_state: Callable[[], ConversationDrafter] = checkpoint.states(target, weights)

    def replay(self, prompt: Sequence[int], answer: Sequence[int], shapes: Sequence[DraftShape]) -> list[Acceptance]:
        """Acceptance of each shape over one answer (whose first token the prefill gives)."""
        ids = [*prompt, *answer]
        memory, state = self._read(ids)
        return [self._replay(ids, prompt, memory, state, shape) for shape in shapes]

    def runs(
        self,
        prompt: Sequence[int],
        answer: Sequence[int],
        cuts: Sequence[int],
        room: WritingLimit,
        *,
        memory: bool = True,
        thin: ThinMemory | None = None,
    ) -> list[StandaloneRun]:
        """What it writes after each cut, ascending, if the server is lost there; 0: it has read the prompt.

        It has the memory of the tokens before the cut, all but the newest, or only some rows of it (`thin`).
        """
        ids = [*prompt, *answer]
        rows, state = self._read(ids) if memory else (None, None)
        draft = ConversationDraft(self._new_state, CHAIN, TextGuesser())
        draft.restart(prompt)  # as a client begins: copies are judged by what follows
        known, runs = 0, []
        sampling = sampling_for(self._sampling, prompt)

        def following(written: Sequence[int]) -> WrittenToken:
            return draft.write(DraftTree.chain(written), sampling, guarded=self._guarded, copies=self._copies)

        for cut in cuts:
            newest = len(prompt) + cut - 1
            draft.forget()
            if new := ids[len(draft.state.tokens) : newest + 1]:
                draft.commit(new)
            for plane, is_state in ((rows, False), (state, True)):
                if plane is not None:
                    for start, stop in _sent(Plane.REUSED_STATE if is_state else Plane.MEMORY, known, newest, thin):
                        draft.remember(start, plane[start:stop], state=is_state)
            known = newest
            runs.append(self._run(following, answer, cut, room))
        return runs

    def _read(self, ids: Sequence[int]) -> tuple[Rows, Rows | None]:
        read = self.reader.read(ids)
        source = read.last_hidden if self.reads_last_hidden else read.kv
        if read.entries is not None:
            source = read.entries
        return np.empty((len(ids), 0), np.float32) if self._rows is None else self._rows(source), read.state

    def _replay(
        self, ids: Sequence[int], prompt: Sequence[int], memory: Rows, state: Rows | None, shape: DraftShape
    ) -> Acceptance:
        drafter, sampling = self._new_state(), sampling_for(self._sampling, prompt)
        counts = Acceptance()
        known = 0
        newest = len(prompt)  # position of the newest committed token; the prefill chose it
        while newest + 1 < len(ids):
            new = ids[len(drafter.tokens) : newest + 1]
            drafter.extend(new)
            drafter.append_memory(known, memory[known:newest])
            if state is not None:
                drafter.append_reused_state(known, state[known:newest])
            known = newest
            begun = time.perf_counter()
            tree = make_draft(drafter, shape, len(ids) - 1 - newest, sampling)
            counts.draft_seconds += time.perf_counter() - begun
            newest += verify(tree, ids, newest, counts)
        return counts


def _sent(plane: Plane, known: int, stop: int, thin: ThinMemory | None) -> list[tuple[int, int]]:
    """The positions whose rows come while the text grows from `known` to `stop` tokens."""
    if thin is None:
        return [(known, stop)]
    return sorted({thin.owed(plane, length) for length in range(known + 1, stop + 1)})


class CompanionSubject(DrafterSubject):
    """A companion for the target: an ordinary small model, which drafts and writes from the text alone, as the client
    has it do: its own choices, also where they repeat text.
    """

    reads_memory = False

    def __init__(
        self, companion: Companion, reader: TargetReader, stop_ids: Collection[int] = (), sampling: Sampling = GREEDY
    ) -> None:
        _Subject.__init__(self, reader, stop_ids, sampling)
        self.fingerprint = companion.fingerprint
        self._new_state = companion.new_state
        self._guarded = self._copies = False

    def _read(self, ids: Sequence[int]) -> tuple[Rows, None]:
        return np.empty((len(ids), 0), np.float32), None


class LookupSubject(_Subject):
    """Prompt look-up: a chain copied from the conversation, whatever the shape."""

    def replay(self, prompt: Sequence[int], answer: Sequence[int], shapes: Sequence[DraftShape]) -> list[Acceptance]:
        ids = [*prompt, *answer]
        return [self._replay(ids, len(prompt), shape) for shape in shapes]

    def runs(
        self,
        prompt: Sequence[int],
        answer: Sequence[int],
        cuts: Sequence[int],
        room: WritingLimit,
        **_: object,
    ) -> list[StandaloneRun]:
        """Likewise; a run ends where there is nothing to copy, and none reads memory."""
        text = TextGuesser(longest=LOOKUP_LONGEST)
        text.restart(prompt)
        runs = []

        def following(written: Sequence[int]) -> WrittenToken | None:
            copied = text.copied(written, 1)
            return WrittenToken(*copied, TokenOrigin.COPY) if copied is not None else None

        for cut in cuts:
            text.extend(answer[len(text.tokens) - len(prompt) : cut])
            runs.append(self._run(following, answer, cut, room))
        return runs

    def _replay(self, ids: Sequence[int], prompt: int, shape: DraftShape) -> Acceptance:
        text, counts = TextGuesser(longest=LOOKUP_LONGEST), Acceptance()
        text.restart(ids[: prompt + 1])
        newest = prompt
        while newest + 1 < len(ids):
            tokens = text.continuation(min(shape.nodes, len(ids) - 1 - newest))
            moved = verify(DraftTree.chain(tokens), ids, newest, counts)
            text.extend(ids[newest + 1 : newest + 1 + moved])
            newest += moved
        return counts


Subject = DrafterSubject | LookupSubject
