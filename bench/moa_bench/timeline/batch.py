"""A batch in virtual time: which sessions are in each forward, with which rows, for `moa-bench timeline --batch`.

The server's own schedule plans it, the client's own rules draft. Simulated, so that it needs no model and always gives
the same picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
from moa_client.drafting.settings import DraftingSettings
from moa_server.session.verification import Verification
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.messages import Ack, Draft, Verdict

from moa_bench.report.report import checkout_root
from moa_bench.simulation.device import ScriptedDevice
from moa_bench.simulation.events import EventLoop
from moa_bench.simulation.server import Costs, SimulatedForward, SimulatedPart, SimulatedServer, SimulatedSession
from moa_bench.simulation.text import PROMPT, VOCAB_SIZE, ScriptedText, by_chance

FORWARDS = 15
COSTS = Costs(draft_ms=2.0)  # a slow target and a fast drafter: with five users it still pays to draft on the server
DEVICE_DRAFT_MS = 5.0
ACCEPTANCE = 0.8
ONE_WAY_MS = 15.0
LONG_PROMPT = tuple(range(1, 401))


@dataclass(frozen=True, slots=True)
class User:
    """A session of the picture.

    Args:
        title: of its lane.
        drafting: who drafts.
        arrives_ms: when its question comes to the server.
        answer_tokens: after which it ends.
    """

    title: str
    drafting: DraftingSettings
    arrives_ms: float = 0.0
    answer_tokens: int = 500
    prompt: tuple[int, ...] = PROMPT


NOBODY = DraftingSettings("off")
USERS = (
    User("nobody drafts", NOBODY),
    User("the server drafts", DraftingSettings("server")),
    User("the device drafts", DraftingSettings("device", tree=True)),
    User("the device drafts;\nends", DraftingSettings("device", tree=True), 0.0, 16),
    User("arrives;\nthe server drafts", DraftingSettings("server"), 250.0),
    User("arrives with a prompt\nof 400 tokens", NOBODY, 420.0, prompt=LONG_PROMPT),
)


@dataclass(frozen=True, slots=True)
class LaneRows:
    """What one session has in a forward.

    Args:
        lane: its number.
        fed: committed tokens; `read`: tokens of a prompt.
        nodes: of its device, then of the server, and `own`: how many these are.
        accepted: numbers of the nodes that were committed.
        taken: tokens that were committed, the bonus token included.
        ends: the answer ends with them.
    """

    lane: int
    fed: int
    read: int
    nodes: int
    own: int
    accepted: tuple[int, ...] = ()
    taken: int = 0
    ends: bool = False


@dataclass(frozen=True, slots=True)
class BatchForward:
    """A forward of the picture: from `began_ms` the server drafts for `drafting_ms`, then the target runs `step_ms`."""

    began_ms: float
    drafting_ms: float
    step_ms: float
    rows: tuple[LaneRows, ...]

    @property
    def ended_ms(self) -> float:
        return self.began_ms + self.drafting_ms + self.step_ms


@dataclass(frozen=True, slots=True)
class Batch:
    """Forwards, and when frames with nodes came to the server: (lane, ms)."""

    forwards: tuple[BatchForward, ...]
    frames: tuple[tuple[int, float], ...]


def run_batch(out: Path | None) -> None:
    """Simulates and draws; `docs/img/batch.png` of the checkout, or `out`.

    Raises:
        MoaError: matplotlib is not there, or the file cannot be written.
    """
    from moa_bench.timeline.batch_picture import draw

    root = checkout_root()
    path = out or (root / "docs" / "img" / "batch.png" if root is not None else Path("batch.png"))
    batch = simulate_batch()
    draw(batch, [user.title for user in USERS], path)
    tokens = sum(rows.taken for forward in batch.forwards for rows in forward.rows)
    click.echo(f"{path}: {len(batch.forwards)} forwards, {tokens} tokens")


def simulate_batch(users: tuple[User, ...] = USERS, forwards: int = FORWARDS) -> Batch:
    """The first forwards of these users.

    Raises:
        InternalError: all answers end before.
    """
    loop = EventLoop()
    seen: list[SimulatedForward] = []
    frames: list[tuple[int, float]] = []
    server = SimulatedServer(loop, COSTS, watch=seen.append)
    lanes = [_Lane(loop, server, user, number, frames) for number, user in enumerate(users)]
    loop.run(lambda: len(seen) >= forwards)
    numbers = {id(lane.live): lane.number for lane in lanes}
    return Batch(tuple(_noted(forward, numbers) for forward in seen), tuple(frames))


class _Lane:
    """A user's device, session and link."""

    def __init__(
        self, loop: EventLoop, server: SimulatedServer, user: User, number: int, frames: list[tuple[int, float]]
    ) -> None:
        text = ScriptedText(user.answer_tokens, by_chance(ACCEPTANCE, number), user.prompt)
        own_acceptance = ACCEPTANCE if user.drafting.server_drafts else None
        self.number = number
        self.live: SimulatedSession = server.open(text, self._send_down, own_acceptance=own_acceptance)
        self._loop, self._frames, self._user = loop, frames, user
        self._device = ScriptedDevice(
            VOCAB_SIZE,
            self._send_up,
            lambda: loop.now_ms,
            text.draft_on if user.drafting.device_drafts else None,
            DEVICE_DRAFT_MS,
            loop.after,
            user.drafting,
            rtt_ms=2 * ONE_WAY_MS,
            second=text.second_draft_on if user.drafting.tree else None,
        )
        loop.at(user.arrives_ms, self._ask)

    def _ask(self) -> None:
        ask = self._device.ask(self._user.prompt, AnswerSettings(max_tokens=self._user.answer_tokens))
        self.live.on_ask(ask, read=self._user.prompt == PROMPT)

    def _send_up(self, message: Draft | Ack) -> None:
        self._loop.after(ONE_WAY_MS, lambda: self._take_up(message))

    def _take_up(self, message: Draft | Ack) -> None:
        if isinstance(message, Ack):
            self.live.on_ack(message.committed)
            return
        self._frames.append((self.number, self._loop.now_ms))
        self.live.on_draft(message)

    def _send_down(self, verdict: Verdict) -> None:
        self._loop.after(ONE_WAY_MS, lambda: self._device.on_verdict(verdict))


def _noted(forward: SimulatedForward, numbers: dict[int, int]) -> BatchForward:
    rows = [
        _rows(numbers[id(part.live)], part, verification)
        for part, verification in zip(forward.parts, forward.verifications, strict=True)
    ]
    return BatchForward(forward.began_ms, forward.drafting_ms, forward.step_ms, tuple(rows))


def _rows(lane: int, part: SimulatedPart, verification: Verification | None) -> LaneRows:
    plan, feed = part.plan, len(part.plan.feed)
    reads = part.reads or feed > 1
    fed, read = (0, feed) if reads else (feed, 0)
    if verification is None:
        return LaneRows(lane, fed, read, 0, 0)
    return LaneRows(
        lane,
        fed,
        read,
        len(plan.tree),
        plan.own_nodes,
        verification.kept,
        len(verification.taken),
        ends=verification.finish is not Finish.UNFINISHED,
    )
