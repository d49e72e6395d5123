"""An event simulation of answers over links: virtual time, seeded, no I/O, the real state machines of both ends.

Only what a forward and a draft step take is given. Equal arguments give equal results.
"""

import heapq
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import count

from moa.v1 import moa_pb2 as pb
from moa_client.conversation.conversation import Conversation, Phase
from moa_client.drafting.online import DraftExtended, DraftStep, OnlineDrafting
from moa_client.drafting.settings import DraftingSettings
from moa_client.memory import MemoryPlan
from moa_server.drafting.draft_decision import DraftRecord, GrowthRule
from moa_server.drafting.forward_cost import RowShares
from moa_server.engine.schedule import Rows, Schedule, StepCandidate
from moa_server.session.session import Session, SessionLimits
from moa_server.session.verification import StepPlan
from moa_shared.drafting.growing import Growth
from moa_shared.errors import InternalError
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Ack, AnswerSettings, Draft, Verdict
from moa_shared.protocol.protobuf_messages import DraftFrames, VerdictFrames
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree
from netsim.core.conditions import Conditions, ConditionSchedule
from netsim.core.link import Direction, LinkModel, Release

PACKET_HEADER_BYTES = 52  # of TCP and IP, as netsim's stream proxy counts
FRAME_OVERHEAD_BYTES = 14  # headers of an HTTP/2 frame (9) and of gRPC (5)
PROMPT = (1, 2, 3)
VOCAB_SIZE = 16_384  # token ids of at most two bytes on the wire, as those of frequent tokens
WRONG = 0  # what the drafter says where it is wrong; the target never does
SPARE = 256  # positions that drafts may reach beyond the end
MEASURED_ROWS = (2, 4, 8, 16, 32)  # of the forwards whose times a server knows from its start
LEARNT_FORWARDS = 48  # more than `ForwardCost` remembers


@dataclass(frozen=True, slots=True)
class Costs:
    """What the parts take, in ms.

    `forward_ms`: of so many rows of drafts and prompts, for so many answers. `own_draft_ms`: of one more draft token
    for each of so many answers, made by the server.
    """

    forward_ms: Callable[[float, float], float]
    own_draft_ms: Callable[[float], float]
    draft_ms: float


class VirtualTime:
    """Runs callbacks in the order of their times, which are milliseconds."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()

    def at(self, time_ms: float, callback: Callable[[], object]) -> None:
        heapq.heappush(self._events, (max(time_ms, self.now_ms), next(self._order), callback))

    def after(self, ms: float, callback: Callable[[], object]) -> None:
        self.at(self.now_ms + ms, callback)

    def run(self, until: Callable[[], bool]) -> None:
        while not until():
            if not self._events:
                raise InternalError(f"The simulation stands still at {self.now_ms:.0f} ms.")
            self.now_ms, _, callback = heapq.heappop(self._events)
            callback()


class ScriptedText:
    """A text of `tokens` tokens after the prompt, and a drafter that is `right` about some of its tokens."""

    def __init__(self, tokens: int, right: Callable[[int], bool], prompt: Sequence[int] = PROMPT) -> None:
        length = len(prompt) + tokens + SPARE
        self.tokens = [*prompt, *(1000 + position % 1000 for position in range(len(prompt), length))]
        self._right = [right(position - len(prompt)) for position in range(length)]

    def draft_on(self, committed: int, draft: Sequence[int]) -> int:
        """What the drafter says after so many committed tokens and a chain of draft tokens."""
        position = committed + len(draft)
        if position >= len(self.tokens):
            return WRONG
        return self.tokens[position] if WRONG not in draft and self._right[position] else WRONG


def by_chance(acceptance: float, seed: int) -> Callable[[int], bool]:
    """A drafter that is right about each token with this probability, whatever the schedule."""
    return lambda number: _draw(seed, number) < acceptance


@lru_cache(maxsize=1 << 14)  # a few seeds' long texts: each is simulated by many rules and over many links
def _draw(seed: int, number: int) -> float:
    return random.Random(f"{seed}:{number}").random()


@dataclass(slots=True)
class ScriptedDrafter:
    guess: Callable[[int, Sequence[int]], int]  # the token after so many committed tokens and a chain of draft tokens
    draft_ms: float  # of a step
    after: Callable[[float, Callable[[], None]], object]  # calls a function in so many milliseconds
    post: Callable[[DraftExtended], None]  # takes results
    busy: bool = False

    def begin_growth(self, step: DraftStep, sampling: Sampling) -> None:
        self.busy = True
        self.after(self.draft_ms, partial(self._end_step, step))

    def _end_step(self, step: DraftStep) -> None:
        self.busy = False
        token = self.guess(step.committed, step.draft.tokens)
        self.post(DraftExtended(step, Growth((token,), (len(step.draft) - 1,)), self.draft_ms))


class SimulatedUser:
    """A device, its session on a server and the link between them; asks one question, whose answer is known.

    `drafting`: how the device drafts; None: not at all. `own_acceptance`: of the drafter that the server runs for it
    while that pays; None: it runs none.
    """

    def __init__(
        self,
        time: VirtualTime,
        server: "SimulatedServer",
        text: ScriptedText,
        link: Conditions,
        drafting: DraftingSettings | None,
        *,
        seed: int = 0,
        own_acceptance: float | None = None,
    ) -> None:
        self.arrivals_ms: list[float] = []  # of each token
        self.up_bytes = 0
        self.own_acceptance = own_acceptance
        self.text = text
        self._time, self._server = time, server
        # Nothing is lost: a stream's losses are delays, and rare ones.
        schedule = ConditionSchedule([(0.0, link)])
        self._up, self._down = (LinkModel(schedule, seed, each) for each in (Direction.UP, Direction.DOWN))
        self._drafts, self._verdicts = DraftFrames(), VerdictFrames()
        limits = SessionLimits(len(text.tokens), VOCAB_SIZE)
        run_ahead = drafting is None or drafting.server_runs_ahead
        self.session = Session(limits, end_of_text=frozenset(), decode=lambda tokens: "", run_ahead=run_ahead)
        self.record = DraftRecord()
        self.waits = False  # in the server's schedule
        self.conversation = Conversation(VOCAB_SIZE)
        self.drafter: ScriptedDrafter | None = None
        if drafting is not None:
            self.drafter = ScriptedDrafter(text.draft_on, server.costs.draft_ms, time.after, self.post)
        memory = MemoryPlan(None, {}, Codec.INT4)  # the script needs none, so nothing waits for it
        settings = drafting or DraftingSettings("off")
        self.online = OnlineDrafting(settings, self.conversation, self.drafter, memory)
        self.online.rest.on_opened(server_drafts=False)
        if rtt_ms := 2 * link.delay.effective().mean_ms:
            self.online.window.rtt_ms.add(rtt_ms)

    @property
    def is_answering(self) -> bool:
        return self.conversation.phase is Phase.ANSWERING

    def ask(self, tokens: int) -> None:
        """For so many tokens; the prompt has been read but for its last one."""
        ask = self.conversation.ask(PROMPT, AnswerSettings(max_tokens=tokens))
        self.online.on_asked()
        self.online.mark_synced()
        self.session.on_ask(ask)
        self.session.on_adopted(ask.end - 1, self.session.tokens, self.session.cache_version)
        self._server.wake(self)

    def post(self, extended: DraftExtended) -> None:
        """Takes in a result of the drafter, and drafts on."""
        self.online.on_extended(self._time.now_ms, extended)
        self._draft_on()

    def send_down(self, verdict: Verdict) -> None:
        size = self._verdicts.frame_of(verdict).ByteSize() + FRAME_OVERHEAD_BYTES
        self._deliver(self._down, size, partial(self._on_verdict, verdict))

    def _send_up(self, message: Draft | Ack) -> None:
        if isinstance(message, Draft):
            frame = pb.ClientFrame(draft=self._drafts.write_draft(message))
        else:
            frame = pb.ClientFrame(ack=pb.Ack(committed=message.committed))
        size = frame.ByteSize() + FRAME_OVERHEAD_BYTES
        self.up_bytes += size
        self._deliver(self._up, size, partial(self._on_message, message))

    def _deliver(self, model: LinkModel, nbytes: int, callback: Callable[[], object]) -> None:
        sent = model.admit(nbytes + PACKET_HEADER_BYTES, self._time.now_ms / 1e3)
        if not isinstance(sent, Release) or not math.isfinite(sent.t):
            raise InternalError(f"A simulated link lost a frame of {nbytes} bytes: {sent}.")
        self._time.at(sent.t * 1e3, callback)

    def _on_message(self, message: Draft | Ack) -> None:
        """At the server."""
        if isinstance(message, Draft):
            self.session.on_draft(message)
        else:
            self.session.on_ack(message.committed)
        self._server.wake(self)

    def _on_verdict(self, verdict: Verdict) -> None:
        """At the device."""
        now_ms = self._time.now_ms
        self.arrivals_ms += [now_ms] * len(self.online.follow_verdict(now_ms, verdict).tokens)
        self._draft_on()

    def _draft_on(self) -> None:
        for message in self.online.draft_on(self._time.now_ms):
            self._send_up(message)


Part = tuple[SimulatedUser, StepPlan]  # of a forward


def rows_of(parts: Sequence[Part]) -> int:
    return sum(len(plan.feed) + len(plan.tree) for _, plan in parts)


class SimulatedServer:
    """A server that steps whenever it can: one forward at a time, and in it what the engine would plan.

    As the real one it has measured plain steps and rows when it started.
    """

    def __init__(self, time: VirtualTime, costs: Costs) -> None:
        self.costs = costs
        self.forwards = self.accepted = 0
        plain_ms = costs.forward_ms(0, 1)
        times = [(rows, costs.forward_ms(rows - 1, 1)) for rows in MEASURED_ROWS]
        self._schedule = Schedule[SimulatedUser](RowShares.of_times(plain_ms, times), plain_ms)
        self._time = time
        self._busy = False

    def learn_costs(self, answers: int) -> None:
        """Knows from now on what forwards of so many answers take, as one that has served such a load for minutes."""
        for number in range(LEARNT_FORWARDS):
            nodes = (0, answers // 2, answers, 2 * answers)[number % 4]
            self._schedule.on_forward(Rows(answers, answers, nodes, 0), self.costs.forward_ms(nodes, answers), answers)

    def wake(self, user: SimulatedUser) -> None:
        """Queues a session, and steps if nothing runs."""
        self._queue(user)
        self._dispatch()

    def _queue(self, user: SimulatedUser) -> None:
        if not user.waits:
            user.waits = True
            self._schedule.add(user)

    def _dispatch(self) -> None:
        if self._busy:
            return
        taken = self._schedule.take_answers()
        for user in taken:
            user.waits = False
        if not (parts := self._plan(taken)):
            return
        self._busy = True
        parts, drafting_ms = self._extend(parts)
        step_ms = self.costs.forward_ms(rows_of(parts) - len(parts), len(parts))
        self._time.after(drafting_ms + step_ms, partial(self._on_forward, parts, drafting_ms, step_ms))

    def _plan(self, taken: Sequence[SimulatedUser]) -> list[Part]:
        """As the engine: who can step, and which of their nodes are verified."""
        parts = [(user, plan) for user in taken if (plan := user.session.plan_step()) is not None]
        offered = [StepCandidate(len(plan.feed), plan.tree, user.record.survival(plan.tree)) for user, plan in parts]
        chosen = zip(parts, self._schedule.choose_nodes(offered), strict=True)
        return [(user, picked) for (user, plan), tree in chosen if (picked := plan.pick(tree)) is not None]

    def _extend(self, parts: Sequence[Part]) -> tuple[list[Part], float]:
        """As the engine: the server's own nodes, in chains, for answers to which none came; and how long that takes."""
        schedule, most = self._schedule, max(1, sum(user.own_acceptance is not None for user, _ in parts))
        step_ms = self.costs.own_draft_ms(most) / most  # the share of one of those that draft at once
        drafting: list[int] = []  # how many draft, by depth
        rate, cost, rows = schedule.draft_price(len(parts)), schedule.cost.line, rows_of(parts) - 1
        extended = []
        for user, plan in parts:
            if user.own_acceptance is None or not schedule.cost.known or len(plan.feed) > 1 or plan.tree:
                extended.append((user, plan))
                continue
            rule = GrowthRule(rate, cost, rows, step_ms, 0.0, user.session.most_nodes)
            tree, steps = _guess(user, user.own_acceptance, rule)
            extended.append((user, replace(plan, tree=tree, own_nodes=len(tree))))
            drafting += [0] * (steps - len(drafting))
            for depth in range(steps):
                drafting[depth] += 1
            rows += len(tree)
        return extended, sum(self.costs.own_draft_ms(each) for each in drafting)

    def _on_forward(self, parts: Sequence[Part], drafting_ms: float, step_ms: float) -> None:
        self._busy = False
        self.forwards += 1
        nodes = sum(len(plan.tree) for _, plan in parts)
        least_chance, tokens = self._schedule.least_chance(len(parts)), 0
        for user, plan in parts:
            verification = plan.verify([user.text.tokens[position] for position in plan.positions])
            arrived = user.session.arrived_draft()
            user.session.on_verified(plan, verification)
            user.record.learn_taken(arrived, verification.taken)
            self.accepted += verification.accepted
            tokens += len(verification.taken)
            took_ms = drafting_ms + step_ms
            user.send_down(
                user.session.verdict(plan, verification, stale=0, step_ms=took_ms, least_chance=least_chance)
            )
        self._schedule.on_forward(Rows(len(parts), rows_of(parts) - nodes, nodes), step_ms, tokens, drafting_ms)
        for user, _ in parts:
            self._queue(user)
        self._dispatch()


def _guess(user: SimulatedUser, acceptance: float, rule: GrowthRule) -> tuple[DraftTree, int]:
    """The nodes of the server's drafter that are worth their rows, and how many steps it took."""
    held, reach = len(user.session.tokens), 1.0
    tokens: list[int] = []
    chances: list[float] = []
    while len(tokens) < rule.most_nodes and rule.pays(reach, acceptance, 1.0, later=acceptance, drafted=len(tokens)):
        tokens.append(user.text.draft_on(held, tokens))
        reach *= acceptance
        chances.append(reach)
    return DraftTree.chain(tokens).pick(rule.choose(chances)), len(tokens)
