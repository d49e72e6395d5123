"""Calls of tools in one conversation: found where an answer ends, asked for, and run while the link is maintained.

State: the calls under way, which tools may always be run here, and the calls that wait for a surface to say whether
they may be. Invariants: only calls that a server has verified are run, and nothing that was not permitted.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from moa_shared.plain_text import marked_text
from moa_shared.protocol.messages import Finish

from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.conversation import Turn
from moa_client.conversation.options import AnswerOptions
from moa_client.engine.engine import ClientEngine
from moa_client.host.publisher import Publisher
from moa_client.logs import told
from moa_client.tools.tool import AnsweredCall, Tool, ToolBox, ToolCall
from moa_client.tools.turns import ConversationTurns

DENIED_WORDS = "The user did not allow this call."
MOST_RESULT = 1 << 16  # characters that the model is told, and no more than the context has tokens: a third of it


class Calls:
    """The calls of one conversation; without a box of tools there are none."""

    def __init__(
        self, engine: ClientEngine, publisher: Publisher, box: ToolBox | None, turns: ConversationTurns
    ) -> None:
        self.turns = turns
        self.engine = engine
        self._publisher = publisher
        self._box = box
        self._allowed: set[tuple[str, str]] = set()  # server and tool
        self._waiting: dict[str, tuple[events.CallWanted, asyncio.Future[events.Permission]]] = {}
        self._calling: asyncio.Task[list[AnsweredCall]] | None = None

    def turn_of(self, question: str, options: AnswerOptions) -> Turn:
        return self.turns.of(question, options.results, options.reasoning_effort)

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def open_events(self) -> Sequence[events.SurfaceEvent]:
        """What a surface that comes now must know: what is wrong with the tools, and which calls wait."""
        remarks = self._box.remarks if self._box is not None else ()
        return [*map(events.ToolsChanged, remarks), *(wanted for wanted, _ in self._waiting.values())]

    def permit(self, call: str, permission: events.Permission) -> None:
        """Says whether a call that waits may be run; nothing happens where none of this name waits."""
        if call in self._waiting and not (decided := self._waiting[call][1]).done():
            decided.set_result(permission)

    def cancel(self) -> bool:
        """Cancels the calls that wait or run; False: there are none."""
        if self._calling is not None:
            self._calling.cancel()
        return self._calling is not None

    def newest(self) -> tuple[ToolCall, ...]:
        """The calls of the newest answer, if it has ended with some."""
        text = self._publisher.answers[-1] if self._publisher.answers else None
        if text is None or text.is_unsettled or not self._publisher.is_part(text):
            return ()
        return self._calls_of(text, text.finish)

    def counted(self, event: events.Event, text: AnswerText) -> events.Event:
        """An event of an answer; its end with the number of calls that follow."""
        if not isinstance(event, events.Ended) or event.provisional:
            return event
        return replace(event, calls=len(self._calls_of(text, event.finish)))

    def begin_again(self) -> None:
        """Tells that the newest answer goes on with its calls, which have no answer yet."""
        calls = len(self.newest())
        self._publish(events.Continued(self._publisher.answers[-1].options))
        self._publish(events.Ended(Finish.END_OF_TEXT, calls=calls))
        for wanted, _ in self._waiting.values():
            self._publish(wanted)

    def leave(self, reason: str) -> None:
        """Tells that calls of the newest answer, if it has some, stay without an answer."""
        if self.newest():
            self._publish(events.CallsLeft(reason))

    async def answer(self) -> Sequence[AnsweredCall]:
        """The calls of the newest answer, answered; none: it has none, or the user has stopped them."""
        if self._box is None or not (calls := self.newest()):
            return ()
        self._calling = calling = asyncio.create_task(self._answer_all(self._box, calls))
        calling.add_done_callback(lambda _: self.engine.wake())
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
        self._publish(events.CallsLeft())
        return ()

    async def _attend(self, calling: asyncio.Task[list[AnsweredCall]]) -> None:
        try:
            async with aclosing(self.engine.attend(calling.done)) as updates:
                async for event in updates:
                    self._publisher.on_engine_event(event)
        except Exception as error:  # noqa: BLE001 (the next answer opens the link again)
            self._publisher.publish(events.Failed(told(error)))

    async def _answer_all(self, box: ToolBox, calls: Sequence[ToolCall]) -> list[AnsweredCall]:
        """Answers one after another, each by the server whose tool it was when the conversation began."""
        by_name = {tool.name: tool for tool in self.turns.tools}
        return [await self._answer(box, call, by_name.get(call.name) or Tool(call.name)) for call in calls]

    async def _answer(self, box: ToolBox, call: ToolCall, tool: Tool) -> AnsweredCall:
        name, server = tool.listed or tool.name, box.server_of(call.name, tool.server)
        waits = bool(server) and (server, name) not in self._allowed
        wanted = events.CallWanted(call.id, name, call.arguments, server, waits)
        self._publish(wanted)
        permission = await self._permission(wanted) if waits else events.Permission.ONCE
        if permission is events.Permission.ALWAYS:
            self._allowed.add((server, name))
        if permission is events.Permission.DENIED:
            answered = AnsweredCall(call, DENIED_WORDS, is_error=True)
        else:
            answered = await box.run(call, tool.server)
            most = min(MOST_RESULT, self.engine.device.target.context_tokens)  # characters
            left_out = len(answered.content) - most
            cut = f"\n[Cut: {left_out:,} characters more.]" if left_out > 0 else ""
            answered = replace(answered, content=marked_text(answered.content[:most] + cut))
        self._publish(events.CallAnswered(call.id, answered.content, answered.is_error))
        return answered

    async def _permission(self, wanted: events.CallWanted) -> events.Permission:
        decided: asyncio.Future[events.Permission] = asyncio.get_running_loop().create_future()
        self._waiting[wanted.call] = wanted, decided
        try:
            permission = await decided
        finally:
            del self._waiting[wanted.call]
        self._publish(events.CallDecided(wanted.call, permission))
        return permission

    def _calls_of(self, text: AnswerText, finish: Finish) -> tuple[ToolCall, ...]:
        if self._box is None or finish is not Finish.END_OF_TEXT:
            return ()
        conversation = self.engine.conversation
        before = conversation.tokens[: len(conversation.tokens) - len(conversation.answer)]
        return self.turns.calls(before, conversation.answer, f"{text.options.seed}/{len(before)}/{text.number}")

    def _publish(self, event: events.SurfaceEvent) -> None:
        self._publisher.publish(event, len(self._publisher.answers))
