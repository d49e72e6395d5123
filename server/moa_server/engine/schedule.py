"""Which rows the next forward holds: of which sessions, how many draft nodes of each, how much of which prompt.

Pure: it has no clock; the engine reports what forwards took. Invariants: every answer that waits is in the next
forward, as far as MOST_ROWS allow; so is some prompt, so neither starves the other. Where not all find room, owners
take turns, so that none gets less because another has many sessions.

Draft nodes. A forward over n rows takes C(n) and yields S tokens on average: one an answer, and the survival
probabilities of the nodes. At a rate of r tokens a millisecond so far, the nodes of all sessions together are taken
that maximise S - r C(n): r is the price of time (Howard, Dynamic Programming and Markov Processes, 1960). Drafts pay
DRAFT_PRICE times that (`drafting/draft_decision.py`). Waiting for a draft that is due does not pay: docs/adr/0011.

Prompts. A row of a prompt takes as long wherever it is read, so a forward with answers reads no more of a prompt than
doubles its time, and a prompt loses little: rows of the answers are read next to its own. Where several wait, a turn is
long enough for a short one to end in it: conversations that a lost server leaves behind come together, and reading all
of them a little at a time would let all of them wait until the last one is read.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from moa_shared.drafting.estimates import Smoothed
from moa_shared.tree import DraftTree

from moa_server.drafting.draft_decision import DRAFT_PRICE, SUREST, count_that_pays, has_time
from moa_server.drafting.forward_cost import TORCH, ForwardCost, RowShares
from moa_server.session.session import Session
from moa_server.session.verification import NO_DRAFT

Queued = TypeVar("Queued")


class FairQueue(Generic[Queued]):
    """Owners take turns: between two turns of one, each other one that waits has one. `owner_of`: whose each is."""

    def __init__(self, owner_of: Callable[[Queued], str]) -> None:
        self._owner_of = owner_of
        self._waiting: dict[str, deque[Queued]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, each: Queued) -> None:
        self._waiting.setdefault(self._owner_of(each), deque()).append(each)

    def put_back(self, each: Queued) -> None:
        """Queues one that was taken before all others, for its turn is not over."""
        owner = self._owner_of(each)
        own = self._waiting.pop(owner, deque())
        own.appendleft(each)
        self._waiting = {owner: own, **self._waiting}

    def take(self) -> Queued:
        """Takes the first of the owner whose turn it is; to be called only while something waits."""
        owner = next(iter(self._waiting))
        own = self._waiting.pop(owner)
        each = own.popleft()
        if own:
            self._waiting[owner] = own  # its next turn comes after those of all others
        return each

    def clear(self) -> None:
        self._waiting.clear()


RECENT = 1 / 16  # weight of a forward in the rate, which spans a paragraph of an answer
MOST_ROWS = 512  # of answers in one forward
SLICE_SHARE = 1.0  # of the time of the answers' rows that the rows of prompts in the same forward may take
LEAST_SLICE = 16  # tokens: fewer rows do not fill the kernels
TURN = 64  # tokens of a prompt that are read before it is another one's turn
LONGEST_TURN = 128  # so many where the prompt ends with them


class HasSession(Protocol):
    session: Session


Waiting = TypeVar("Waiting", bound=HasSession)


class StepCandidate(NamedTuple):
    """An answer that could step."""

    feed: int  # committed tokens that it feeds: one, or the last few of a text that is read again
    arrived: DraftTree
    survival: Sequence[float] | None  # the chance of each node to be right; None: all are verified


class Rows(NamedTuple):
    """The rows of a forward. `answers`: sessions that chose tokens in it; `fed` and `nodes`: their rows."""

    answers: int
    fed: int
    nodes: int
    read: int = 0

    @property
    def beyond_first(self) -> int:
        """Rows of answers besides the one of a plain step."""
        return max(0, self.fed + self.nodes - 1)


class Schedule(Generic[Waiting]):
    """Decides what the next forward does.

    `plain_ms`: time of a plain step until one has been measured; 0: not known. `most_read`: tokens of prompts in a
    forward. `owner_of`: who takes turns. `verifies_all`: all nodes that have arrived, as if they cost nothing.
    """

    def __init__(
        self,
        shares: RowShares = TORCH,
        plain_ms: float = 0.0,
        most_read: int = 256,
        owner_of: Callable[[Waiting], str] = lambda _: "",
        *,
        verifies_all: bool = False,
    ) -> None:
        self.cost = ForwardCost(shares, plain_ms)
        self._verifies_all = verifies_all
        self._most_read = most_read
        self._answers = FairQueue(owner_of)
        self._prompts = FairQueue(owner_of)
        self._reading: Waiting | None = None  # the prompt whose turn it is
        self._turn_tokens = 0  # that were read of it in this turn
        self._tokens = Smoothed(weight=RECENT)  # of a forward, and what it took
        self._ms = Smoothed(weight=RECENT)
        self._read_ms = Smoothed(weight=RECENT)  # of a row of a prompt

    # ------------------------------------------------------------ who waits

    def add(self, live: Waiting) -> None:
        """Queues a session after those of its kind and owner, or before all while it is its turn to be read."""
        if not live.session.reads:
            self._answers.add(live)
        elif live is self._reading and (
            self._turn_tokens < TURN or self._turn_tokens + live.session.unread <= LONGEST_TURN
        ):
            self._prompts.put_back(live)
        else:
            self._prompts.add(live)

    def clear(self) -> None:
        self._answers.clear()
        self._prompts.clear()
        self._reading = None

    def take_answers(self) -> list[Waiting]:
        """Takes the sessions whose answers are in the next forward; none: it is a prompt's turn."""
        taken: list[Waiting] = []
        rows = 0
        while self._answers and rows < MOST_ROWS:
            live = self._answers.take()
            rows += max(1, live.session.unread)
            taken.append(live)
        return taken

    def take_prompt(self) -> Waiting | None:
        """Takes the next session that has a prompt to read, for a forward with room for some of it."""
        return self._prompts.take() if self._prompts else None

    def on_read(self, live: Waiting, tokens: int) -> None:
        self._turn_tokens = tokens + (self._turn_tokens if live is self._reading else 0)
        self._reading = live

    # ------------------------------------------------------------ what they do

    def choose_nodes(self, candidates: Sequence[StepCandidate]) -> list[DraftTree]:
        if not self.cost.known or not any(each.survival for each in candidates):
            return [each.arrived for each in candidates]
        chosen: list[list[int]] = [[*range(len(each.arrived))] if each.survival is None else [] for each in candidates]
        rows = sum(each.feed for each in candidates) + sum(map(len, chosen))
        offered = sorted(
            (-chance, which, node)  # a parent before its children
            for which, each in enumerate(candidates)
            for node, chance in enumerate(each.survival or ())
        )[: max(0, MOST_ROWS - rows)]
        chances = (-less for less, _, _ in offered)
        count = count_that_pays(chances, self.cost.line, self.draft_price(len(candidates)), rows)
        for _, which, node in offered[:count]:
            chosen[which].append(node)
        return [each.arrived.pick(nodes) if nodes else NO_DRAFT for each, nodes in zip(candidates, chosen, strict=True)]

    def rate(self, answers: int = 1) -> float:
        """The recent rate in tokens per millisecond, at least that of plain steps of so many answers together.

        0 before a plain step was measured.
        """
        if not self.cost.known:
            return 0.0
        recent = self._tokens.mean / self._ms.mean if self._ms.samples else 0.0
        return max(answers / self.cost.ms(answers - 1), recent)

    def draft_price(self, answers: int) -> float:
        """Tokens that a millisecond of drafts must bring."""
        return 0.0 if self._verifies_all else DRAFT_PRICE * self.rate(answers)

    @property
    def has_price(self) -> bool:
        return self._verifies_all or self.cost.known

    def has_time(self, sure: float = SUREST) -> bool:
        """Whether there is time for drafts next to all that wait: answers, and those whose prompts are read first."""
        waiting = max(1, len(self._answers) + len(self._prompts))
        return has_time(self.cost.line, self.draft_price(waiting), waiting, sure)

    def least_chance(self, answers: int) -> float:
        """The chance that a draft node must have to be worth verifying next to so many answers; 0: not known yet."""
        if self._verifies_all or not answers:
            return 0.0
        return self.cost.line.least_chance(self.rate(answers), answers - 1)

    def read_tokens(self, rows: int) -> int:
        """How many tokens of prompts to read next to `rows` rows of answers."""
        if not rows:
            return self._most_read
        if not self._read_ms.mean or not self.cost.known:
            return min(LEAST_SLICE, self._most_read)
        room = SLICE_SHARE * self.cost.ms(rows - 1) / self._read_ms.mean
        return min(self._most_read, max(LEAST_SLICE, int(room)))

    @property
    def read_ms(self) -> float:
        """A row of a prompt, as measured; until then, a row among many; 0: neither is known."""
        if self._read_ms.mean:
            return self._read_ms.mean
        line = self.cost.line
        return line.slope_ms * line.shares.of(LEAST_SLICE) / LEAST_SLICE

    # ------------------------------------------------------------ what it took

    def on_forward(self, rows: Rows, ms: float, tokens: int, drafting_ms: float = 0.0) -> None:
        """A forward has ended. `drafting_ms`: how long the server drafted before it."""
        if not rows.read:
            if rows.fed == rows.answers:  # those that read a text again are no measure of a row
                self.cost.add(rows.beyond_first, ms)
            self._tokens.add(tokens)
            self._ms.add(ms + drafting_ms)
        elif not rows.answers:
            self._read_ms.add(ms / rows.read)
        elif self.cost.known:
            self._read_ms.add(max(0.0, ms - self.cost.ms(rows.beyond_first)) / rows.read)

    def answers_ms(self, rows: Rows, ms: float) -> float:
        return min(ms, self.cost.ms(rows.beyond_first)) if rows.read and self.cost.known else ms
