"""Whether the server drafts, and which draft nodes are verified: all that decides it. Pure.

With a stream it is settled what could draft for it (`drafting_source`, `SessionDrafting.agree`). Before each forward it
is asked whether there is time for any draft (`has_time`), and what the drafter of a session is told
(`SessionDrafting.order`). Then a step of the drafter, and a node of either end, must be worth its time (`GrowthRule`,
`count_that_pays`).

Time has a price: at r tokens a millisecond, a millisecond costs r tokens. A step of the drafter takes d milliseconds
and looks at the place where the text leaves what is known with a chance, its *reach*; there it finds `found` tokens on
average. So it gains reach * (found - r * rows) - r * d, where `rows` is what the nodes that it adds cost the forward.
The first nodes can cost more than they find, since a forward over two rows takes longer than a plain step and one over
five hardly longer than that: a step pays if it gains together with some of those that can follow it.
A node pays if its chance outweighs what its row adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from moa_shared.drafting.drafts import ConversationDrafter
from moa_shared.drafting.estimates import DrafterTrial, TreeAcceptance
from moa_shared.drafting.guesses import NgramTable
from moa_shared.protocol.messages import Plane
from moa_shared.tree import ROOT, DraftTree

from moa_server.drafting.forward_cost import CostLine
from moa_server.session.memory_feed import KeptPlane, OwnPlane
from moa_server.session.session import Session
from moa_server.session.verification import StepPlan

Rows = npt.NDArray[np.float32]
NewDrafter = Callable[[], ConversationDrafter]

COPY_BYTES = 1024  # a token, of what finds copies


@dataclass(frozen=True, slots=True)
class OwnDrafter:
    """A kind of drafter that the server can run."""

    new: NewDrafter
    token_bytes: int  # that it holds of each token
    ngrams: NgramTable | None = None  # what the target usually says; None: there is no table for it
    # Of it against look-up, in all sessions; once it is dropped, only what the text suggests is drafted.
    trial: DrafterTrial = field(default_factory=DrafterTrial)
    reads_all_rows: bool = False  # it knows of the text only what memory rows say so it reads each of them
    # Its rows are keys and values, which take next to no time, and of states it reads the newest.
    reads_target_cache: bool = False
    block_levels: int = 0  # levels of a draft that come with its first step; 0: each level takes one

    def most_nbytes(self, rows: int) -> int:
        return rows * (self.token_bytes + COPY_BYTES)


@dataclass(frozen=True, slots=True)
class MemorySource:
    """Turns the target's activations into the rows that a drafter reads; all are float32 arrays."""

    # [tokens, layers, 2 * kv_heads * head_dim] of the cache to [tokens, width] memory rows.
    encode: Callable[[Rows], Rows]
    width: int  # numbers of a memory row on the wire
    state_layer: int | None  # decoder layer whose input is the reused state; None: the drafter reuses no layers
    # `encode` takes the inputs of these decoder layers side by side, [tokens, layers * hidden size], in place of
    # keys and values, and no plane holds them; as many as there are layers: what leaves the last one, which is
    # all that EAGLE-2 reads.
    reads_layers: tuple[int, ...] = ()
    fingerprint: bytes = b""
    # For drafts of the server's own, over the same memory rows; None: the server does not draft.
    drafter: OwnDrafter | None = None
    drafter_layer: int | None = None  # decoder layer whose input `drafter` reads, where that is not `state_layer`
    cache_layers: tuple[int, ...] = ()  # `encode` takes keys and values of these alone (`read_layers`); (): of all
    # Of the states only the newest is of use, as this makes it of what `state_layer` takes; None: all are, as they are.
    newest_state: Callable[[Rows], Rows] | None = None
    # How many of the newest memory rows are sent whole, and the numbers of the others; None: all rows are.
    narrow: tuple[int, int] | None = None

    @property
    def has_states(self) -> bool:
        return self.state_layer is not None

    def layers_of(self, plane: KeptPlane) -> tuple[int, ...]:
        """The layers whose inputs a forward must give for a plane, whose rows cannot be made later.

        None: its rows are made from the cache.
        """
        if plane is Plane.MEMORY:
            return self.reads_layers
        layer = self.drafter_layer if plane is OwnPlane.STATE else self.state_layer
        return () if layer is None else (layer,)


# ---------------------------------------------------------------- with a stream


def drafting_source(
    sources: Sequence[MemorySource], source: MemorySource | None, *, wanted: bool
) -> MemorySource | None:
    """The source whose drafter drafts here for a client; None: the server does not draft for it.

    `source`: of the memory that the client wants; None: it wants none. `wanted`: whether the client wants the server's
    drafts, and the operator too.
    """
    source = source or next(iter(sources), None)
    return source if wanted and source is not None and source.drafter is not None else None


class DraftRecord(TreeAcceptance):
    """How good the drafts of a stream's device are."""

    def __init__(self) -> None:
        super().__init__()
        self.fruitless_steps = 0  # since a guess was right, whether it was verified or not

    def learn_taken(self, arrived: DraftTree, taken: Sequence[int], *, blind: bool = False) -> None:
        """A forward has chosen tokens.

        `arrived`: the whole draft below the newest token (so that nodes not verified are judged too;
        `Session.arrived_draft()` before `on_verified`). `blind`: the client lacks rows of the prompt, so its guesses
        say nothing about its drafter.
        """
        if not blind:
            self.learn(arrived, taken)
        right = bool(taken) and arrived.child_with(ROOT, taken[0]) is not None
        self.fruitless_steps = 0 if right else self.fruitless_steps + 1


class DraftOrder(NamedTuple):
    """A request to draft for one session."""

    base: int  # the drafter knows the tokens before it
    tokens: Sequence[int]  # committed ones from there on, the newest last
    covered: float  # the chance that the next token is among the nodes that have arrived
    most_nodes: int  # of the draft, those that have arrived among them


@dataclass(slots=True)
class SessionDrafting:
    """The drafters of one session."""

    # Makes the memory rows that are kept, of planes of these `widths`; None: none are.
    source: MemorySource | None = None
    widths: Mapping[KeptPlane, int] = field(default_factory=dict)
    record: DraftRecord | None = None  # how good the drafts of the attached stream are; None: none come
    takes_drafts: bool = True  # whether they count
    can_lack_states: bool = False  # its rows can be made without the states that forwards yield, which only drafts need
    by_server: bool = False  # whether the server drafts
    drafts_forced: bool = False  # whether it drafts what an answer's form forces, for which it needs no drafter
    _told: int = 0  # tokens that the server's drafter knows, and their hash
    _told_hash: int = 0

    @property
    def own_drafter(self) -> OwnDrafter | None:
        return self.source.drafter if self.by_server and self.source is not None else None

    def agree(
        self, *, by_server: bool, drafts_forced: bool, record: DraftRecord | None = None, takes_drafts: bool = True
    ) -> None:
        self.by_server, self.drafts_forced = by_server, drafts_forced
        self.record, self.takes_drafts = record, takes_drafts

    def keep(self, source: MemorySource, widths: Mapping[KeptPlane, int]) -> list[KeptPlane]:
        """Keeps rows of these planes from now on; returns the planes that were not kept before."""
        before: Mapping[KeptPlane, int] = self.widths if self.source is source else {}
        self.source, self.widths = source, {**before, **widths}
        made = [plane for plane in self.widths if source.layers_of(plane)]
        self.can_lack_states = bool(made) and Plane.MEMORY not in made and source.newest_state is None
        self.forget()
        return [plane for plane in widths if plane not in before]

    def forget(self) -> None:
        """The server's drafter knows nothing: it must be told the whole text."""
        self._told = 0

    def order(self, session: Session, plan: StepPlan) -> DraftOrder | None:
        """What to tell the server's drafter before a step; None: it does not draft now."""
        if not (self.by_server and plan.chooses and len(plan.feed) == 1) or plan.form_is_slow:
            return None
        covered = 0.0
        if self.record is not None and plan.tree:
            chances = self.record.survival(plan.tree)
            covered = sum(chances[node] for node in plan.tree.children[ROOT])
        base = self._tell(session)
        return DraftOrder(base, session.tokens[base:], covered, session.most_nodes)

    def _tell(self, session: Session) -> int:
        """Counts the committed tokens as known to the server's drafter; returns how many it knew before."""
        held, told = len(session.tokens), self._told
        known = told if told <= held and session.hashes.at(told) == self._told_hash else 0
        self._told, self._told_hash = held, session.hashes.at(held)
        return known


# ---------------------------------------------------------------- before a forward

# What drafts must bring, over what their time is worth. Of many nodes those are taken whose chance is overestimated or
# whose cost is underestimated, so drafts that are expected to break even are a loss (docs/adr/0060).
DRAFT_PRICE = 1.3
# Of a node that must be surer than this to pay, none is sought: looking for one takes a server of sixteen users 0.04 ms
# a session, which is worth a thirtieth of a token there.
SUREST = 0.95


# There is time enough for reading again what was read without keeping its states.
MUCH_TIME = 0.8


def has_time(cost: CostLine, price: float, rows: int, sure: float = SUREST) -> bool:
    """Whether a forward of so many rows has time for drafts: a node that is nearly sure pays for its row.

    It depends on what forwards cost, and on nothing of a session: until there is time again, none need be asked.
    `price`: tokens that a millisecond must bring; `sure`: the chance that a node must not need.
    """
    return cost.least_chance(price, rows - 1) < sure


def count_that_pays(chances: Iterable[float], cost: CostLine, price: float, rows: int) -> int:
    """How many nodes, of which the surest come first, to verify in a forward that has `rows` rows without them."""
    plain_ms = cost.ms(rows - 1)
    best, best_count, tokens = 0.0, 0, 0.0
    for count, chance in enumerate(chances, 1):
        tokens += chance
        value = tokens - price * (cost.ms(rows - 1 + count) - plain_ms)
        if value > best:
            best, best_count = value, count
    return best_count


MOST_AHEAD = 8  # steps that are weighed together


@dataclass(frozen=True, slots=True)
class GrowthRule:
    """The rule for one forward."""

    rate: float  # tokens that a millisecond must bring
    cost: CostLine
    rows: int  # of the forward beyond the first, without the nodes that the rule is asked about
    step_ms: float  # of a step of the drafter; `follow_ms`: of what it reads before the first one
    follow_ms: float
    most_nodes: int

    def pays(
        self, reach: float, found: float, nodes: float, *, later: float = 0.0, drafted: int = 0, first: bool = False
    ) -> bool:
        """Whether to take a step of the drafter, which some more may follow.

        `reach`: the chance that it looks at the right place. There it finds `found` tokens on average, each that
        follows `later`, and it adds `nodes` to the forward. `first`: it must read what was committed before.
        """
        step_price = self.rate * self.step_ms
        gain = -self.rate * self.follow_ms if first else 0.0
        rows = float(self.rows + drafted)
        for _ in range(MOST_AHEAD):
            if reach * found <= step_price:
                return False  # nor does any that follows
            nodes_ms = self.cost.ms(rows + nodes) - self.cost.ms(rows)
            gain += reach * (found - self.rate * nodes_ms) - step_price
            if gain > 0.0:
                return True
            reach, found, rows = reach * min(1.0, found), later, rows + nodes
        return False

    @property
    def least_chance(self) -> float:
        """What a node must have so that it can pay among a few others."""
        return self.cost.least_chance(self.rate, self.rows)

    def choose(self, chances: Sequence[float]) -> list[int]:
        """The nodes to verify.

        `chances`: of each node; none has a greater one than its parent, which comes before it.
        """
        order = sorted(range(len(chances)), key=lambda node: (-chances[node], node))[: self.most_nodes]
        count = count_that_pays((chances[node] for node in order), self.cost, self.rate, self.rows + 1)
        return sorted(order[:count])
