"""Calls of tools in one conversation: found where an answer ends, asked for, and run while the link is maintained.

State: the calls under way, which tools may always be run here, and the calls that wait for a surface to say whether
they may be. Invariants: only calls that a server has verified are run, and nothing that was not permitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from moa_shared.protocol.finish_rule import Finish
from moa_shared.text.plain_text import marked_text

from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.events import (
    CallAnswered,
    CallDecided,
    CallsLeft,
    CallWanted,
    Continued,
    Ended,
    Event,
    Failed,
    Permission,
    SurfaceEvent,
    ToolsChanged,
)
from moa_client.engine.engine import ClientEngine
from moa_client.failures import told
from moa_client.host.publisher import Publisher
from moa_client.tools.tool import AnsweredCall, Tool, ToolBox, ToolCall
from moa_client.tools.turns import ConversationTurns

DENIED_WORDS = "The user did not allow this call."
MOST_RESULT = 1 << 16  # characters that the model is told, and no more than the context has tokens: a third of it


def shortened_result(content: str, most: int) -> str:
    """What a model is told of a result, all of which is text.

    `most`: characters; a word says how many more there were.
    """
    left_out = len(content) - most
    return marked_text(content if left_out <= 0 else f"{content[:most]}\n[Cut: {left_out:,} characters more.]")


class CallRunner:
    """Runs the calls of one conversation.

    `publish` tells an event about the answer that calls; the model takes at most `context_tokens`.
    """

    def __init__(self, box: ToolBox, publish: Callable[[SurfaceEvent], None], context_tokens: int) -> None:
        self._box = box
        self._most = min(MOST_RESULT, context_tokens)
        self._publish = publish
        self._allowed: set[tuple[str, str]] = set()  # server and tool
        self._waiting: dict[str, tuple[CallWanted, asyncio.Future[Permission]]] = {}

    @property
    def waiting(self) -> Sequence[CallWanted]:
        return [wanted for wanted, _ in self._waiting.values()]

    def permit(self, call: str, permission: Permission) -> None:
        """Says whether a call that waits may be run."""
        if call in self._waiting and not (decided := self._waiting[call][1]).done():
            decided.set_result(permission)

    async def answer(self, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> tuple[AnsweredCall, ...]:
        """The calls with their answers, one after another; cancelling this cancels the call under way.

        `tools`: that the conversation began with: a call is answered by the server whose tool it was then.
        """
        by_name = {tool.name: tool for tool in tools}
        return tuple([await self._answer(call, by_name.get(call.name) or Tool(call.name)) for call in calls])

    async def _answer(self, call: ToolCall, tool: Tool) -> AnsweredCall:
        name, server = tool.listed or tool.name, self._box.server_of(call.name, tool.server)
        waits = bool(server) and (server, name) not in self._allowed
        wanted = CallWanted(call.id, name, call.arguments, server, waits)
        self._publish(wanted)
        permission = await self._permission(wanted) if waits else Permission.ONCE
        if permission is Permission.ALWAYS:
            self._allowed.add((server, name))
        if permission is Permission.DENIED:
            answered = AnsweredCall(call, DENIED_WORDS, is_error=True)
        else:
            answered = await self._box.run(call, tool.server)
            answered = replace(answered, content=shortened_result(answered.content, self._most))
        self._publish(CallAnswered(call.id, answered.content, answered.is_error))
        return answered

    async def _permission(self, wanted: CallWanted) -> Permission:
        decided: asyncio.Future[Permission] = asyncio.get_running_loop().create_future()
        self._waiting[wanted.call] = wanted, decided
        try:
            permission = await decided
        finally:
            del self._waiting[wanted.call]
        self._publish(CallDecided(wanted.call, permission))
        return permission


class CallRounds:
    """The calls of one conversation. `box`: the tools; None: no call is one."""

    def __init__(self, engine: ClientEngine, publisher: Publisher, box: ToolBox | None) -> None:
        self._engine = engine
        self._publisher = publisher
        self._box = box
        self._runner = None if box is None else CallRunner(box, self._publish, engine.device.context_tokens)
        self._calling: asyncio.Task[tuple[AnsweredCall, ...]] | None = None

    @property
    def is_calling(self) -> bool:
        return self._calling is not None and not self.is_waiting

    @property
    def is_waiting(self) -> bool:
        return self._runner is not None and bool(self._runner.waiting)

    @property
    def open_events(self) -> Sequence[SurfaceEvent]:
        """What a surface that comes now must know: what is wrong with the tools, and which calls wait."""
        if self._box is None or self._runner is None:
            return []
        return [*map(ToolsChanged, self._box.remarks), *self._runner.waiting]

    def permit(self, call: str, permission: Permission) -> None:
        """Says whether a call that waits may be run."""
        if self._runner is not None:
            self._runner.permit(call, permission)

    def cancel(self) -> bool:
        """Cancels the calls that wait or run; False: there are none."""
        if self._calling is not None:
            self._calling.cancel()
        return self._calling is not None

    def newest(self, turns: ConversationTurns) -> tuple[ToolCall, ...]:
        text = self._publisher.answers[-1] if self._publisher.answers else None
        if text is None or text.is_unsettled or not self._publisher.is_part(text):
            return ()
        return self._calls(text, text.finish, turns)

    def counted(self, event: Event, text: AnswerText, turns: ConversationTurns) -> Event:
        """An event of an answer; its end with the number of calls that follow."""
        if not isinstance(event, Ended) or event.provisional:
            return event
        return replace(event, calls=len(self._calls(text, event.finish, turns)))

    def begin_again(self, turns: ConversationTurns) -> None:
        """Tells that the newest answer goes on with its calls, which have no answer yet."""
        calls = len(self.newest(turns))
        self._publish(Continued(self._publisher.answers[-1].options))
        self._publish(Ended(Finish.END_OF_TEXT, calls=calls))
        for wanted in self._runner.waiting if self._runner is not None else ():
            self._publish(wanted)

    def leave(self, turns: ConversationTurns, reason: str) -> None:
        """Tells that calls of the newest answer, if it has some, stay without an answer."""
        if self.newest(turns):
            self._publish(CallsLeft(reason))

    async def answer(self, turns: ConversationTurns) -> tuple[AnsweredCall, ...]:
        """The calls of the newest answer, answered; none: it has none, or the user has stopped them."""
        calls = self.newest(turns)
        if self._runner is None or not calls:
            return ()
        self._calling = calling = asyncio.create_task(self._runner.answer(calls, turns.tools))
        calling.add_done_callback(lambda _: self._engine.wake())
        try:
            await self._attend(calling)
            return await calling
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise  # the conversation is closed
        finally:
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            self._calling = None
        self._publish(CallsLeft())
        return ()

    async def _attend(self, calling: asyncio.Task[tuple[AnsweredCall, ...]]) -> None:
        try:
            async with aclosing(self._engine.attend(calling.done)) as events:
                async for event in events:
                    self._publisher.on_engine_event(event)
        except Exception as error:  # noqa: BLE001 (the next answer opens the link again)
            self._publisher.publish(Failed(told(error)))

    def _calls(self, text: AnswerText, finish: Finish, turns: ConversationTurns) -> tuple[ToolCall, ...]:
        if self._box is None or finish is not Finish.END_OF_TEXT:
            return ()
        conversation = self._engine.conversation
        before = conversation.tokens[: len(conversation.tokens) - len(conversation.answer)]
        return turns.calls(before, conversation.answer, f"{text.options.seed}/{len(before)}/{text.number}")

    def _publish(self, event: SurfaceEvent) -> None:
        self._publisher.publish(event, len(self._publisher.answers))
