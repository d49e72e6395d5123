"""Runs the calls of a conversation's answers: each is asked for, run if it may be, and answered.

State: which tools may always be run here, and the calls that wait for a surface to say whether they may be. Invariant:
nothing is run that was not permitted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from moa_shared.text.unicode_text import marked_text

from moa_client.conversation.events import CallAnswered, CallDecided, CallWanted, Permission, SurfaceEvent
from moa_client.tools.tool import AnsweredCall, Tool, ToolCall
from moa_client.tools.tool_box import ToolBox

DENIED_WORDS = "The user did not allow this call."
MOST_RESULT = 1 << 16  # characters that the model is told, and no more than the context has tokens: a third of it


def shortened_result(content: str, most: int) -> str:
    """What a model is told of a result, all of which is text.

    Args:
        most: characters; a word says how many more there were.
    """
    left_out = len(content) - most
    return marked_text(content if left_out <= 0 else f"{content[:most]}\n[Cut: {left_out:,} characters more.]")


class CallRunner:
    """Runs the calls of one conversation.

    Args:
        box: the tools.
        publish: tells an event about the answer that calls.
        context_tokens: the most that the model takes.
    """

    def __init__(self, box: ToolBox, publish: Callable[[SurfaceEvent], None], context_tokens: int) -> None:
        self._box = box
        self._most = min(MOST_RESULT, context_tokens)
        self._publish = publish
        self._allowed: set[tuple[str, str]] = set()  # server and tool
        self._waiting: dict[str, tuple[CallWanted, asyncio.Future[Permission]]] = {}

    @property
    def waiting(self) -> Sequence[CallWanted]:
        """The calls that wait for permission."""
        return [wanted for wanted, _ in self._waiting.values()]

    def permit(self, call: str, permission: Permission) -> None:
        """Says whether a call that waits may be run."""
        if call in self._waiting and not (decided := self._waiting[call][1]).done():
            decided.set_result(permission)

    async def answer(self, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> tuple[AnsweredCall, ...]:
        """The calls with their answers, one after another; cancelling this cancels the call under way.

        Args:
            tools: that the conversation began with: a call is answered by the server whose tool it was then.
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
        """What a surface says of a call."""
        decided: asyncio.Future[Permission] = asyncio.get_running_loop().create_future()
        self._waiting[wanted.call] = wanted, decided
        try:
            permission = await decided
        finally:
            del self._waiting[wanted.call]
        self._publish(CallDecided(wanted.call, permission))
        return permission
