"""A conversation with tools, over an engine that writes what a test says, and tools that a test answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from moa_client.conversation import events
from moa_client.history.reading import (
    pack_options,
    unpack_options,
)
from moa_client.host.calls import DENIED_WORDS, MOST_RESULT
from moa_client.host.surface_session import Watch
from moa_client.host.text_conversation import MOST_ROUNDS
from moa_client.tools.tool import AnsweredCall, Tool, ToolCall
from moa_shared.protocol.messages import Finish

from tests.support.answer_events import PlainTokenizer
from tests.support.tool_calls import NOW, WEATHER
from tests.unit.moa_client.host.scripted_engine import ScriptedEngine
from tests.unit.moa_client.host.test_text_conversation import OPTIONS, Talk

CALL = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
OTHER = '<tool_call>{"name": "tomorrow", "arguments": {}}</tool_call>'
END = events.Ended(Finish.END_OF_TEXT)


class Characters(PlainTokenizer):
    """One that also knows which text its tokens are."""

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


class Box:
    """Tools of which `now` answers when a test says so; implements `ToolBox`."""

    def __init__(self) -> None:
        self.tools: tuple[Tool, ...] = (replace(NOW, server="clock", listed="now"), WEATHER)
        self.remarks = ("One server is missing.",)
        self.owner = "clock"
        self.answers: asyncio.Queue[str] = asyncio.Queue()
        self.called = asyncio.Event()

    def server_of(self, tool: str, server: str = "") -> str:
        return self.owner if tool in ("now", "get_weather") and server in ("", self.owner) else ""

    async def run(self, call: ToolCall, server: str = "") -> AnsweredCall:
        if not self.server_of(call.name, server):
            return AnsweredCall(call, "There is none.", is_error=True)
        self.called.set()
        return AnsweredCall(call, await self.answers.get())


class ToolTalk(Talk):
    def __init__(self) -> None:
        engine, self.box = ScriptedEngine(), Box()
        target = engine.device.target
        target.tokenizer, target.decode, target.context_tokens = Characters(), Characters().decode, MOST_RESULT
        super().__init__(engine, box=self.box)

    async def call(self, *answer: str) -> Any:
        self.task.ask("When?", OPTIONS)
        await self.until(events.Asked)
        return await self.write("".join(answer))

    async def write(self, answer: str) -> Any:
        self.engine.tell(events.Committed(tuple(map(ord, answer))), END)
        return await self.event(events.CallWanted)


@asynccontextmanager
async def talking() -> AsyncIterator[ToolTalk]:
    talk = ToolTalk()
    try:
        yield talk
    finally:
        await talk.conversation.close()


async def test_an_allowed_call_is_run_and_the_answer_goes_on_with_its_result() -> None:
    async with talking() as talk:
        wanted = await talk.call("Let me see. ", CALL)
        assert talk.updates[0].event == events.ToolsChanged("One server is missing.")
        assert talk.updates[-2].event == events.Ended(Finish.END_OF_TEXT, calls=1)
        assert wanted == events.CallWanted(wanted.call, "now", "{}", "clock")
        assert not talk.task.is_answering  # a call may wait for ever
        again = Watch(talk.conversation)  # a page that is loaded again is asked, too
        async with aclosing(cast("Any", again.updates())) as updates:
            assert [(await anext(updates)).event for _ in range(2)][1] == wanted
        talk.calls.permit("another", events.Permission.DENIED)
        talk.calls.permit(wanted.call, events.Permission.ALWAYS)
        talk.box.answers.put_nowait("12:00")
        asked = await talk.event(events.Asked)
        assert [each.event for each in talk.updates[-3:-1]] == [
            events.CallDecided(wanted.call, events.Permission.ALWAYS),
            events.CallAnswered(wanted.call, "12:00"),
        ]
        assert asked.options.results == (AnsweredCall(ToolCall(wanted.call, "now", "{}"), "12:00"),)
        assert (asked.question, asked.options.tools) == ("", ())
        assert (asked.options.seed, asked.options.max_tokens) == (3, 8)
        assert talk.answers[0].options.tools == talk.box.tools

        second = await talk.write(CALL)
        assert (second.waits, second.call != wanted.call) == (False, True)
        talk.box.answers.put_nowait("12:01")
        await talk.event(events.Asked)
        talk.engine.tell(events.Committed(tuple(map(ord, "Noon."))), END)
        assert (await talk.event(events.Ended)).calls == 0
        assert talk.engine.turns[0].startswith("[system]# Tools")
        assert talk.engine.turns[1:] == [
            f"[user]<tool_response>\n{time}\n</tool_response>" for time in ("12:00", "12:01")
        ]


async def test_the_model_learns_that_a_call_was_denied_or_that_there_is_no_such_tool() -> None:
    async with talking() as talk:
        wanted = await talk.call(OTHER, CALL)
        assert (wanted.tool, wanted.waits, wanted.server) == ("tomorrow", False, "")
        wanted = await talk.event(events.CallWanted)
        talk.calls.permit(wanted.call, events.Permission.DENIED)
        asked = await talk.event(events.Asked)
        assert [(each.content, each.is_error) for each in asked.options.results] == [
            ("There is none.", True),
            (DENIED_WORDS, True),
        ]
        assert not talk.box.called.is_set()


async def test_a_call_that_is_stopped_is_left_and_wanted_again_when_the_answer_is_continued() -> None:
    async with talking() as talk:
        first = await talk.call(CALL)
        talk.calls.permit(first.call, events.Permission.ONCE)
        await talk.box.called.wait()
        assert talk.task.is_answering
        talk.task.stop()
        await talk.event(events.CallsLeft)
        assert not talk.task.is_answering
        talk.task.continue_answer(0)
        wanted = await talk.event(events.CallWanted)
        assert [each.event for each in talk.updates[-3:-1]] == [
            events.Continued(talk.answers[0].options),
            events.Ended(END.finish, calls=1),
        ]
        assert wanted == first
        talk.task.continue_answer(0)  # another surface wants to be asked
        assert await talk.event(events.CallWanted) == first
        talk.task.ask("Something else?", OPTIONS)
        await talk.event(events.CallsLeft)
        assert (await talk.event(events.Asked)).question == "Something else?"
        talk.engine.tell(events.Committed((0,)), events.Ended(Finish.STOP))
        await talk.event(events.Ended)
        talk.task.ask("Never mind?", OPTIONS)
        assert (await talk.event(events.Asked)).question == "Never mind?"


async def test_a_result_is_cut_and_marked_and_a_conversation_remembers_whose_tool_it_was() -> None:
    async with talking() as talk:
        talk.calls.permit((await talk.call(CALL)).call, events.Permission.ALWAYS)
        talk.box.answers.put_nowait("\ud800" + "x" * (1 << 20))
        content = (await talk.event(events.Asked)).options.results[0].content
        assert content.startswith("\ufffdxxx")
        assert content.endswith(f"x\n[Cut: {(1 << 20) + 1 - MOST_RESULT:,} characters more.]")
        assert unpack_options(pack_options(talk.answers[0].options)).tools == talk.box.tools
        talk.box.owner = "another clock"  # has a tool of that name, too
        assert not (await talk.write(CALL)).server
        assert (await talk.event(events.CallAnswered)).content == "There is none."


async def test_a_model_that_calls_for_ever_is_stopped() -> None:
    async with talking() as talk:
        talk.calls.permit((await talk.call(CALL)).call, events.Permission.ALWAYS)
        for _ in range(MOST_ROUNDS - 1):
            talk.box.answers.put_nowait("12:00")
            await talk.event(events.Asked)
            await talk.write(CALL)
        talk.box.answers.put_nowait("12:00")
        await talk.event(events.Asked)
        talk.engine.tell(events.Committed(tuple(map(ord, CALL))), END)
        assert f"{MOST_ROUNDS} times in a row" in (await talk.event(events.CallsLeft)).reason


async def test_calls_that_a_server_verifies_later_are_told_and_wait_for_the_user() -> None:
    tokens = tuple(map(ord, CALL))
    async with talking() as talk:
        talk.task.ask("When?", OPTIONS)
        await talk.event(events.Asked)
        talk.engine.tell(
            events.Committed(tokens[:1]), events.Provisional(tokens[1:]), events.Ended(END.finish, provisional=True)
        )
        assert (await talk.event(events.Ended)).calls == 0
        talk.engine.conversation.answer = list(tokens)
        talk.engine.tell(
            events.Earlier(events.Committed(tokens[1:], len(tokens) - 1)),
            events.Settled(tokens[1:], events.AnswerOutcome.CONFIRMED, END.finish),
        )
        assert (await talk.event(events.CallsLeft)).reason == "The answer calls a tool."
        assert not talk.box.called.is_set()
        talk.task.continue_answer(0)
        assert (await talk.event(events.CallWanted)).tool == "now"
