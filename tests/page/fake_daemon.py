"""A daemon without a model: its answers are played by a script; everything else is as in it."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText, Update, apply_update
from moa_client.conversation.events import Provenance, joined
from moa_client.conversation.figures import Figures, LinkStatus
from moa_client.conversation.options import AnswerOptions
from moa_client.history.reading import Summary
from moa_client.host.surface_session import Watch
from moa_client.page.routes import Crossing, ExportForm, FrameTap
from moa_client.surface.conversation import Subscription
from moa_client.surface.messages import ConversationFacts, Fields
from moa_client.tools.thinking import ReasoningMarks
from moa_client.tools.tool import AnsweredCall, ToolCall
from moa_shared.errors import ConflictError, NotFoundError
from moa_shared.protocol.messages import Finish
from moa_shared.sampling.settings import CHAT_DEFAULTS

SERVER, MODEL = "lab.example:50051", "SmolLM2-135M-Instruct"
GOOD = LinkStatus(events.LinkState.GOOD, 52.0, 0.0, 0.0, 0, 0, server=SERVER)  # nothing has gone over the link yet
WORD = re.compile(r"\s*\S+\s*$|\s*\S+")  # with the space before it
Script = Callable[["Stage", str], Awaitable[None]]


def says(*parts: str) -> Script:
    """The server says the parts; each but the first waits at the gate `on`."""

    async def script(stage: Stage, question: str) -> None:
        for number, part in enumerate(parts):
            if number:
                await stage.gate("on")
            stage.commit(part)

    return script


class Stage:
    """One answer on its way, which ends where its script does. Words stand for tokens."""

    def __init__(self, conversation: FakeConversation, number: int) -> None:
        self.conversation = conversation
        self.number = number
        self.waiting = ""  # provisional text
        self.figures = Figures(seconds=1.0)
        self.gate = conversation.backend.gate
        self.link = conversation.link

    def commit(self, text: str) -> None:
        """The server commits a text, word by word; provisional text that differs is withdrawn."""
        for piece in WORD.findall(text):
            count = len(piece.split())
            confirmed = self.waiting.startswith(piece)
            if self.waiting and not confirmed:
                self.tell(events.Corrected(len(self.waiting.split())))
            self.waiting = self.waiting[len(piece) :] if confirmed else ""
            self.figures.tokens += count
            self.tell(events.Committed(tuple(range(count)), count if confirmed else 0, piece))

    def commit_runs(self, *pieces: tuple[str, Provenance, float]) -> None:
        """The server commits a token for each piece: its text, its writer and its chance."""
        runs = joined((len(text), writer.letter, chance) for text, writer, chance in pieces)
        self.tell(events.Committed(tuple(range(len(pieces))), text="".join(text for text, _, _ in pieces), runs=runs))

    def write(self, text: str, *, likely: bool = True) -> None:
        """The device writes without the server; `likely`: what the server would write, too."""
        for piece in WORD.findall(text):
            self.waiting += piece
            self.tell(events.Provisional((1,), (0.6,), piece, likely))

    async def call(self, call: ToolCall, server: str, content: str) -> None:
        """The answer, which is over, calls a tool, which waits at the gate `called`; the next begins with its result."""
        permission = await self.conversation.permission(events.CallWanted(call.id, call.name, call.arguments, server))
        self.publish(events.CallDecided(call.id, permission))
        await self.gate("called")
        is_denied = permission is events.Permission.DENIED
        answered = AnsweredCall(call, "The user did not allow this call." if is_denied else content, is_denied)
        self.publish(events.CallAnswered(call.id, answered.content, is_denied))
        self.number += 1
        self.publish(events.Asked("", replace(self.conversation.answers[-1].options, results=(answered,))))

    def end(self, finish: Finish = Finish.END_OF_TEXT, *, calls: int = 0) -> None:
        self.tell(events.Ended(finish, provisional=bool(self.waiting), calls=calls))

    def tell(self, event: events.AnswerEvent) -> None:
        figures, conversation = self.figures, self.conversation
        undecided, holds_back = len(self.waiting.split()), isinstance(event, events.HeldBack)
        conversation.status = replace(conversation.status, undecided=undecided, holds_back=holds_back)
        shown = replace(figures) if isinstance(event, events.Ended) else None
        conversation.publish(Update(event, self.number, figures=shown))

    def publish(self, event: events.SurfaceEvent) -> None:
        self.conversation.publish(Update(event, self.number))


class FakeConversation:
    """One conversation, open for any number of surfaces, in place of a `TextConversation` and of its parts."""

    def __init__(self, backend: FakeBackend, facts: ConversationFacts, updated: float) -> None:
        self.backend, self.facts, self.updated = backend, facts, updated
        self.status = GOOD
        self.answers: list[AnswerText] = []
        self.subscriptions: list[Subscription] = []
        self.asked: list[tuple[str, AnswerOptions]] = []
        self.requests: list[str] = []
        self.keep, self.write_standalone = (partial(self.requests.append, each) for each in ("keep", "standalone"))
        self.open_events: list[events.CallWanted] = []
        self._permitted: asyncio.Queue[events.Permission] = asyncio.Queue()
        self.engine = self.publisher = self.task = self.calls = self
        self.todo: asyncio.Queue[tuple[events.SurfaceEvent, int]] = asyncio.Queue()
        self._running: asyncio.Task[None] | None = None
        self.running = asyncio.create_task(self._run())

    @property
    def summary(self) -> Summary:
        title = self.facts.title or self.answers[0].question.split("\n")[0]
        unverified = sum(answer.is_unsettled for answer in self.answers)
        return Summary(
            self.facts.identifier, title, self.updated, self.updated, MODEL, SERVER, len(self.answers), unverified
        )

    @property
    def said(self) -> str:
        return self.facts.title + "\n".join(f"{each.question}\n{each.committed}" for each in self.answers)

    def link(self, state: events.LinkState, reason: str = "") -> None:
        self.status = replace(self.status, state=state)
        self.facts = replace(self.facts, online=state is not events.LinkState.OFFLINE, absent=reason)
        self.publish(Update(events.LinkChanged(state, reason)))

    def publish(self, update: Update) -> None:
        update = replace(update, status=self.status)
        apply_update(self.answers, update)
        for subscription in self.subscriptions:
            subscription.push_update(update)

    def ask(self, question: str, options: AnswerOptions, instead_of: int = 0) -> None:
        options.settings()
        self.asked.append((question, options))
        decided = options.decided(CHAT_DEFAULTS, seed=len(self.asked))
        self.todo.put_nowait((events.Asked(question, decided), instead_of))

    def continue_answer(self, max_tokens: int) -> None:
        self.requests.append(f"continue {max_tokens}")
        self.todo.put_nowait((events.Continued(self.answers[-1].options), len(self.answers)))

    def stop(self, *, at_once: bool = False) -> None:
        self.requests.append("stop")
        if self._running is not None:
            self._running.cancel()

    async def permission(self, wanted: events.CallWanted) -> events.Permission:
        """What a reader says of a call."""
        self.open_events.append(wanted)
        self.publish(Update(wanted, len(self.answers)))
        permission = await self._permitted.get()
        self.open_events.remove(wanted)
        return permission

    def permit(self, call: str, permission: events.Permission) -> None:
        assert [call] == [wanted.call for wanted in self.open_events]
        self._permitted.put_nowait(permission)

    def choose_model(self, name: str | None) -> None:
        if name is None:
            self.publish(Update(events.ModelsChanged(self.facts.target, self.backend.models)))
        elif name not in dict(self.backend.models):
            self.publish(Update(events.Failed(NotFoundError(f"There is no model {name!r} here."))))
        elif dict(self.backend.models)[name] != "loads":
            self.facts = replace(self.facts, target=name)
            self.publish(Update(events.ModelsChanged(name)))

    def set_title(self, title: str) -> None:
        self.facts = replace(self.facts, title=title)
        self.publish(Update(events.Titled(title)))

    async def _run(self) -> None:
        while True:
            event, number = await self.todo.get()
            number = number or len(self.answers) + 1
            self.publish(Update(event, number))
            answer = self.answers[number - 1]
            self.updated, stage = time.time(), Stage(self, number)
            self._running = asyncio.ensure_future(self.backend.script(stage, answer.question))
            try:
                await asyncio.wait([self._running])
                if self._running.cancelled():
                    stage.publish(events.Ended(Finish.CANCELLED))
                else:
                    self._running.result()
                if self.answers[-1].is_running:
                    stage.end()
            finally:
                self._running.cancel()
                self._running = None


class FakeBackend:
    """Implements `PageBackend`. `script`: of each answer."""

    def __init__(self, script: Script) -> None:
        self.open_conversations: dict[str, FakeConversation] = {}
        self.is_offline = False
        self.models: tuple[tuple[str, str], ...] = ((MODEL, SERVER),)
        self.thinking: ReasoningMarks | None = None  # how answers of the model mark reasoning
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.tap = FrameTap()
        self.script = script

    async def gate(self, name: str) -> None:
        """Waits until a test lets a script go on."""
        await self.gates[name].wait()
        self.gates[name].clear()

    async def open(self, identifier: str | None, system: str | None, single: bool) -> Watch:
        if identifier is None:
            identifier = f"c{len(self.open_conversations) + 1:03}"
            self.begin(identifier, "", system)
        return Watch(cast("Any", self._find(identifier)))

    def status(self) -> Fields:
        return {"target": MODEL, "state": "offline" if self.is_offline else "good", "wants_online": not self.is_offline}

    async def conversations(self, search: str) -> Sequence[Summary]:
        kept = sorted(self.open_conversations.values(), key=lambda each: -each.updated)
        return [each.summary for each in kept if each.answers and search.lower() in each.said.lower()]

    async def delete(self, identifier: str) -> None:
        conversation = self._find(identifier)
        if conversation.subscriptions:
            raise ConflictError("The conversation is open.", hint="Close it first.")
        del self.open_conversations[identifier]
        conversation.running.cancel()

    async def export(self, identifier: str, form: ExportForm) -> str:
        title = self._find(identifier).facts.title
        return json.dumps({"id": identifier}) if form == "json" else f"# {title}\n"

    def set_offline(self, is_offline: bool) -> None:
        self.is_offline = is_offline
        for conversation in self.open_conversations.values():
            conversation.link(events.LinkState.OFFLINE if is_offline else events.LinkState.GOOD)

    def timeline(self) -> AsyncIterator[Crossing]:
        return self.tap.watch()

    def begin(self, identifier: str, title: str, system: str | None = None, updated: float = 0.0) -> FakeConversation:
        facts = ConversationFacts(identifier, title, MODEL, SERVER, online=True, system=system, thinking=self.thinking)
        self.open_conversations[identifier] = FakeConversation(self, facts, updated or time.time())
        return self.open_conversations[identifier]

    def _find(self, identifier: str) -> FakeConversation:
        if identifier not in self.open_conversations:
            raise NotFoundError(f"There is no conversation {identifier}.", hint="It may have been deleted.")
        return self.open_conversations[identifier]
