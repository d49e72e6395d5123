"""A conversation whose answers are scripts; everything else is as in the daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partialmethod

from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText, Update, apply_update
from moa_client.conversation.figures import LinkStatus
from moa_client.conversation.options import AnswerOptions
from moa_client.surface.conversation import Subscription
from moa_client.surface.messages import ConversationFacts
from moa_shared.protocol.finish_rule import Finish
from moa_shared.sampling.settings import CHAT_DEFAULTS

Play = Callable[["FakeConversation", int, str, AnswerOptions], Awaitable[None]]
Cross = Callable[[str, str, int, int, int, int, str], None]


class FakeConversation:
    """One conversation, open for any number of surfaces.

    Args:
        play: plays an answer.
        cross: tells who watches the link.
    """

    def __init__(
        self, facts: ConversationFacts, status: LinkStatus, play: Play, cross: Cross, updated: float = 0.0
    ) -> None:
        self.facts = facts
        self.status = status
        self.updated = updated
        self.answers: list[AnswerText] = []
        self.subscriptions: list[Subscription] = []
        self.asked: list[tuple[str, AnswerOptions]] = []
        self.requests: list[str] = []
        self.waiting: dict[
            str, tuple[events.CallWanted, asyncio.Future[events.Permission]]
        ] = {}  # that wait for permission
        self.engine = self.publisher = self.task = self.calls = self
        self._play = play
        self._cross = cross
        self._todo: asyncio.Queue[Callable[[], Awaitable[None]]] = asyncio.Queue()
        self._running: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run())

    def cross(self, way: str, kind: str, size: int, tokens: int = 0, accepted: int = 0, by_server: int = 0) -> None:
        self._cross(way, kind, size, tokens, accepted, by_server, self.facts.identifier)

    def set_link(self, state: events.LinkState, reason: str = "") -> None:
        rtt_ms = None if state is events.LinkState.OFFLINE else 52.0
        self.status = replace(self.status, state=state, rtt_ms=rtt_ms)
        self.facts = replace(self.facts, online=state is not events.LinkState.OFFLINE, absent=reason)

    def subscribe(self) -> Subscription:
        subscription = Subscription()
        for wanted, _ in self.waiting.values():
            subscription.push_update(Update(wanted, len(self.answers)))
        self.subscriptions.append(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        subscription.close()
        self.subscriptions.remove(subscription)

    def publish(self, update: Update) -> None:
        update = replace(update, status=self.status)
        apply_update(self.answers, update)
        for subscription in self.subscriptions:
            subscription.push_update(update)

    def ask(self, question: str, options: AnswerOptions, instead_of: int = 0) -> None:
        options.settings()
        self.asked.append((question, options))
        decided = options.decided(CHAT_DEFAULTS, seed=len(self.asked))
        self._todo.put_nowait(lambda: self._answer(question, decided, instead_of))

    def continue_answer(self, max_tokens: int) -> None:
        self.requests.append(f"continue {max_tokens}")
        self._todo.put_nowait(self._go_on)

    def stop(self, *, at_once: bool = False) -> None:
        self.requests.append("stop")
        if self._running is not None:
            self._running.cancel()

    def rewind(self, answers: int) -> None:
        async def rewind() -> None:
            self.publish(Update(events.Rewound(answers)))

        self._todo.put_nowait(rewind)

    async def permission(self, wanted: events.CallWanted) -> events.Permission:
        """What a reader says of a call."""
        decided: asyncio.Future[events.Permission] = asyncio.get_running_loop().create_future()
        self.waiting[wanted.call] = wanted, decided
        self.publish(Update(wanted, len(self.answers)))
        try:
            return await decided
        finally:
            del self.waiting[wanted.call]

    def permit(self, call: str, permission: events.Permission) -> None:
        self.waiting[call][1].set_result(permission)

    def _request(self, what: str) -> None:
        self.requests.append(what)

    write_standalone = partialmethod(_request, "standalone")
    keep = partialmethod(_request, "keep")

    def set_system(self, system: str | None) -> None:
        self.facts = replace(self.facts, system=system)

    def set_title(self, title: str) -> None:
        self.facts = replace(self.facts, title=title)
        self.publish(Update(events.Titled(title)))

    def wish(self, is_offline: bool) -> None:
        state = events.LinkState.OFFLINE if is_offline else events.LinkState.GOOD
        self.set_link(state)
        self.publish(Update(events.LinkChanged(state)))

    go_offline = partialmethod(wish, True)
    go_online = partialmethod(wish, False)

    def forget_waiting(self) -> None:
        """Questions that wait for their turn are lost, as with a daemon that is killed."""
        while not self._todo.empty():
            self._todo.get_nowait()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for subscription in self.subscriptions:
            subscription.close()

    async def _run(self) -> None:
        while True:
            await (await self._todo.get())()

    async def _answer(self, question: str, options: AnswerOptions, instead_of: int) -> None:
        number = instead_of or len(self.answers) + 1
        self.publish(Update(events.Asked(question, options), number))
        await self._play_out(number, question, options)

    async def _go_on(self) -> None:
        newest = self.answers[-1]
        self.publish(Update(events.Continued(newest.options), newest.number))
        await self._play_out(newest.number, newest.question, newest.options)

    async def _play_out(self, number: int, question: str, options: AnswerOptions) -> None:
        self._running = asyncio.ensure_future(self._play(self, number, question, options))
        try:
            await asyncio.wait([self._running])
            if self._running.cancelled():
                self.publish(Update(events.Ended(Finish.CANCELLED), number))
            else:
                self._running.result()
        finally:
            self._running.cancel()
            self._running = None
