"""A daemon without a model: its answers are scripts, chosen by a word of the question."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.options import AnswerOptions
from moa_client.history.reading import Summary
from moa_client.host.host import Crossing
from moa_client.host.surface_session import Watch
from moa_client.page.routes import ExportForm
from moa_client.surface.messages import ConversationFacts, Fields
from moa_client.tools.thinking import ReasoningMarks
from moa_shared.errors import ConflictError, NotFoundError
from moa_shared.protocol.finish_rule import Finish

from tests.page.fake_conversation import FakeConversation
from tests.page.stage import Gates, Stage, crossing, good_status

Script = Callable[[Stage, str], Awaitable[None]]


class FakeBackend:
    """Implements `PageBackend`.

    Args:
        scripts: the first whose word the question has is played.
    """

    def __init__(self, scripts: Mapping[str, Script]) -> None:
        self.gates = Gates()
        self.open_conversations: dict[str, FakeConversation] = {}
        self.is_offline = False
        self.thinking: ReasoningMarks | None = None  # how answers of the model mark reasoning
        self.companion = ""  # writes while there is no server; empty: there is none
        self._scripts = scripts
        self._watchers: list[asyncio.Queue[Crossing]] = []

    # ------------------------------------------------------------ for the page

    async def open(self, identifier: str | None, system: str | None, single: bool) -> Watch:
        if identifier is None:
            identifier = f"c{len(self.open_conversations) + 1:03}"
            self.begin(identifier, "", system)
        if identifier not in self.open_conversations:
            raise NotFoundError(f"There is no conversation {identifier}.", hint="Begin a new one.")
        return Watch(cast("Any", self.open_conversations[identifier]))

    def status(self) -> Fields:
        newest = max(self.open_conversations.values(), key=lambda each: each.updated, default=None)
        status = newest.status if newest is not None else good_status()
        return {
            "version": "0.2.0",
            "phase": "ready",
            "target": "SmolLM2-135M-Instruct",
            "server": "lab.example:50051",
            "state": "offline" if self.is_offline else status.state.value,
            "reason": "",
            "wants_online": not self.is_offline,
            "rtt_ms": status.rtt_ms,
            "drafter": "default",
            "standalone": "deep",
            "level": "int8",
            "exact": True,
            "conversations": len(self.open_conversations),
            "since": 0.0,
        }

    async def conversations(self, search: str) -> Sequence[Summary]:
        kept = [
            Summary(
                identifier,
                each.facts.title or each.answers[0].question.split("\n")[0],
                each.updated,
                each.updated,
                each.facts.target,
                each.facts.server,
                len(each.answers),
                sum(answer.is_unsettled for answer in each.answers),
            )
            for identifier, each in self.open_conversations.items()
            if each.answers and search.lower() in _text(each).lower()
        ]
        return sorted(kept, key=lambda each: -each.updated)

    async def delete(self, identifier: str) -> None:
        conversation = self._find(identifier)
        if conversation.subscriptions:
            raise ConflictError("The conversation is open.", hint="Close it first.")
        del self.open_conversations[identifier]
        await conversation.close()

    async def export(self, identifier: str, form: ExportForm) -> str:
        conversation = self._find(identifier)
        if form == "json":
            return json.dumps({"id": identifier, "answers": [answer.committed for answer in conversation.answers]})
        return f"# {conversation.facts.title}\n\n{_text(conversation)}\n"

    def set_offline(self, is_offline: bool) -> None:
        self.is_offline = is_offline
        for conversation in self.open_conversations.values():
            conversation.wish(is_offline)

    async def timeline(self) -> AsyncIterator[Crossing]:
        watcher: asyncio.Queue[Crossing] = asyncio.Queue()
        self._watchers.append(watcher)
        try:
            while True:
                yield await watcher.get()
        finally:
            self._watchers.remove(watcher)

    # ------------------------------------------------------------ for scripts and tests

    @property
    def watching(self) -> int:
        """How many tabs watch the link."""
        return len(self._watchers)

    def begin(self, identifier: str, title: str, system: str | None = None, updated: float = 0.0) -> FakeConversation:
        facts = ConversationFacts(
            identifier,
            title,
            "SmolLM2-135M-Instruct",
            "lab.example:50051",
            online=True,
            level="int8",
            drafter="default",
            drafter_reason="a level of it takes 3.2 ms here",
            standalone="deep",
            companion=self.companion,
            system=system,
            sampling={"temperature": 0.7, "top_p": 0.95},
            thinking=self.thinking,
        )
        conversation = FakeConversation(facts, good_status(), self._play, self._cross, updated or time.time())
        self.open_conversations[identifier] = conversation
        return conversation

    def remember(self, identifier: str, title: str, turns: Sequence[tuple[str, str]], age_s: float = 0.0) -> None:
        """A conversation of before."""
        conversation = self.begin(identifier, title, updated=time.time() - age_s)
        for number, (question, text) in enumerate(turns, 1):
            answer = AnswerText(question, number)
            answer.committed, answer.finish, answer.is_running = text, Finish.END_OF_TEXT, False
            conversation.answers.append(answer)

    def _find(self, identifier: str) -> FakeConversation:
        if identifier not in self.open_conversations:
            raise NotFoundError(f"There is no conversation {identifier}.", hint="It may have been deleted.")
        return self.open_conversations[identifier]

    async def _play(self, conversation: FakeConversation, number: int, question: str, options: AnswerOptions) -> None:
        conversation.updated = time.time()
        script = next(script for word, script in self._scripts.items() if word in question)
        await script(Stage(conversation, number, options, self.gates), question)

    def _cross(
        self, way: str, kind: str, size: int, tokens: int, accepted: int, by_server: int, conversation: str
    ) -> None:
        for watcher in self._watchers:
            watcher.put_nowait(crossing(way, kind, size, tokens, accepted, by_server, conversation))


def _text(conversation: FakeConversation) -> str:
    return conversation.facts.title + "\n".join(f"{each.question}\n{each.committed}" for each in conversation.answers)
