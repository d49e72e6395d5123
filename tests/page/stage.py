"""Where a scripted answer is played: what it does becomes the updates that a real conversation would send."""

from __future__ import annotations

import asyncio
import re
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace

from moa_client.conversation import events
from moa_client.conversation.answer_text import Update
from moa_client.conversation.events import Provenance, TextRun, joined
from moa_client.conversation.figures import Figures, LinkStatus
from moa_client.conversation.options import AnswerOptions
from moa_client.host.host import Crossing
from moa_client.tools.tool import AnsweredCall, ToolCall
from moa_shared.protocol.finish_rule import Finish

from tests.page.fake_conversation import FakeConversation


class Gates:
    """Where scripts wait until a test lets them go on."""

    def __init__(self) -> None:
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def wait(self, name: str) -> None:
        await self._gates[name].wait()
        self._gates[name].clear()

    def open(self, name: str) -> None:
        self._gates[name].set()


@dataclass
class Stage:
    """One answer on its way. Words stand for tokens."""

    conversation: FakeConversation
    number: int
    options: AnswerOptions
    gates: Gates
    waiting: str = ""  # provisional text
    figures: Figures = field(default_factory=Figures)
    began: float = field(default_factory=time.monotonic)

    async def commit(self, text: str, words: int = 1, accepted: float = 0.6) -> None:
        """The server commits a text, some words at a time; provisional text that differs is withdrawn."""
        for index, piece in enumerate(_pieces(text, words)):
            count = len(piece.split())
            confirmed = self.waiting.startswith(piece)
            if self.waiting and not confirmed:
                self.tell(events.Corrected(len(self.waiting.split())))
            self.waiting = self.waiting[len(piece) :] if confirmed else ""
            chance = (index * 0.618) % 1
            guessed = count if chance < accepted else 0
            by_server = count if accepted <= chance < accepted + 0.2 else 0
            self.figures.tokens += count
            self.figures.accepted += guessed
            self.figures.server_accepted += by_server
            self.figures.kept += count if confirmed else 0
            self.conversation.cross("down", "verdict", 10 + 2 * count, count, guessed, by_server)
            self.conversation.cross("down", "memory", 216 * count)
            writer = Provenance.DRAFT if guessed else Provenance.SERVER if by_server else Provenance.TARGET
            run = TextRun(len(piece), writer, 1 - chance * chance if self.options.chances is not None else None)
            self.tell(events.Committed(tuple(range(count)), count if confirmed else 0, piece, runs=(run,)))
            self.conversation.cross("up", "draft", 30, 3 + index % 3)

    def commit_runs(self, *pieces: tuple[str, Provenance, float | None]) -> None:
        """The server commits a token for each piece: its text, its writer and its chance."""
        runs = joined(TextRun(len(text), writer, chance) for text, writer, chance in pieces)
        self.tell(events.Committed(tuple(range(len(pieces))), text="".join(text for text, _, _ in pieces), runs=runs))

    async def write(self, text: str, *, likely: bool = True) -> None:
        """The device writes without the server; `likely`: what the server would write, too."""
        for piece in _pieces(text, 1):
            self.waiting += piece
            self.figures.provisional += 1
            self.tell(events.Provisional((1,), (0.6,), piece, likely))

    def hold(self, *, unread: bool = False) -> None:
        """The device has more, which it does not show."""
        self.tell(events.HeldBack(unread))

    def link(self, state: events.LinkState, reason: str = "", wait_seconds: float = 0.0) -> None:
        """The link has changed."""
        self.conversation.set_link(state, reason)
        self.conversation.publish(Update(events.LinkChanged(state, reason, wait_seconds)))

    async def call(self, call: ToolCall, server: str, content: str, gate: str = "") -> None:
        """The answer, which is over, calls a tool, which waits at a gate; the next one begins with what it says."""
        conversation = self.conversation
        permission = await conversation.permission(events.CallWanted(call.id, call.name, call.arguments, server))
        conversation.publish(Update(events.CallDecided(call.id, permission), self.number))
        if gate:
            await self.gate(gate)
        is_denied = permission is events.Permission.DENIED
        answered = AnsweredCall(call, "The user did not allow this call." if is_denied else content, is_denied)
        conversation.publish(Update(events.CallAnswered(call.id, answered.content, is_denied), self.number))
        self.number += 1
        conversation.publish(Update(events.Asked("", replace(self.options, results=(answered,))), self.number))

    def end(self, finish: Finish = Finish.END_OF_TEXT, *, verified: bool = True, calls: int = 0) -> None:
        """The answer is over."""
        if verified:
            self.waiting = ""
        self.figures.undecided = len(self.waiting.split())
        self.tell(events.Ended(finish, provisional=not verified, calls=calls))

    def settle(self, text: str, outcome: events.AnswerOutcome, written: int, kept: int) -> None:
        """An answer that ended without the server has been decided."""
        self.waiting = ""
        rest = text[len(self.conversation.answers[self.number - 1].committed) :]
        event = events.Settled((), outcome, Finish.END_OF_TEXT, written, kept, rest)
        self.conversation.publish(Update(event, self.number))

    async def gate(self, name: str) -> None:
        """Waits for a test."""
        await self.gates.wait(name)

    def tell(self, event: events.AnswerEvent) -> None:
        figures = self.figures
        figures.seconds = time.monotonic() - self.began
        status = replace(
            self.conversation.status,
            tokens_per_s=figures.tokens_per_second,
            by_device=figures.by_device,
            by_server=figures.by_server,
            undecided=len(self.waiting.split()),
            up_bytes=34 * figures.tokens,
            down_bytes=240 * figures.tokens,
            memory_bytes=200 * figures.tokens,
            written_standalone=figures.provisional,
            kept=figures.kept,
            holds_back=isinstance(event, events.HeldBack),
        )
        self.conversation.status = status
        shown = replace(figures) if isinstance(event, events.Ended) else None
        self.conversation.publish(Update(event, self.number, figures=shown))


def good_status() -> LinkStatus:
    """Of a link over which nothing has gone yet."""
    return LinkStatus(events.LinkState.GOOD, 52.0, 0.0, 0.0, 0, 0, server="lab.example:50051")


def crossing(way: str, kind: str, size: int, tokens: int, accepted: int, by_server: int, conversation: str) -> Crossing:
    """A message that crosses the link now."""
    assert way in ("up", "down")
    now = 1e3 * time.monotonic()
    return Crossing(now, "up" if way == "up" else "down", kind, size, tokens, accepted, conversation, by_server)


def _pieces(text: str, words: int) -> list[str]:
    parts = re.findall(r"\s*\S+\s*$|\s*\S+", text)
    return ["".join(parts[start : start + words]) for start in range(0, len(parts), words)]
