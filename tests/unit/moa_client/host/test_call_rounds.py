"""A conversation with tools, over an engine that writes what a test says, and tools that a test answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, cast

from moa_client.conversation import events
from moa_client.conversation.conversation import ConversationState
from moa_client.conversation.options import AnswerOptions
from moa_client.history.reading import (
    AnswerStatus,
    ConversationOrigin,
    StoredAnswer,
    StoredConversation,
    pack_options,
    unpack_options,
)
from moa_client.host.calls import DENIED_WORDS, MOST_RESULT
from moa_client.host.surface_session import Watch
from moa_client.host.text_conversation import MOST_ROUNDS, TextConversation
from moa_client.surface.messages import ConversationFacts
from moa_client.tools.tool import AnsweredCall, Tool, ToolCall
from moa_shared.protocol.finish_rule import Finish

from tests.support.scripted_engine import PlainTokenizer, ScriptedEngine
from tests.support.tool_calls import NOW, WEATHER

OPTIONS = AnswerOptions(max_tokens=9, seed=3)
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


class Talk:
    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.engine.device.target.tokenizer = Characters()
        self.engine.device.target.decode = Characters().decode
        self.engine.device.target.context_tokens = MOST_RESULT
        self.box = Box()
        facts = ConversationFacts("id", "", "", "", online=False)
        self.conversation = TextConversation(cast("Any", self.engine), facts, box=self.box)
        self.open = Watch(self.conversation)
        self.events: list[events.SurfaceEvent] = []

    async def until(self, kind: type[events.SurfaceEvent]) -> Any:
        async with aclosing(cast("Any", self.open.updates())) as updates:
            async for update in updates:
                self.events.append(update.event)
                if isinstance(update.event, kind):
                    return update.event
        raise AssertionError

    async def ask(self, *answer: str) -> Any:
        """Asks; the first call that is wanted."""
        self.conversation.task.ask("When?", OPTIONS)
        await self.until(events.Asked)
        return await self.write("".join(answer))

    async def write(self, answer: str) -> Any:
        self.engine.tell(events.Committed(tuple(map(ord, answer))), END)
        return await self.until(events.CallWanted)


@asynccontextmanager
async def talking() -> AsyncIterator[Talk]:
    talk = Talk()
    try:
        yield talk
    finally:
        await talk.conversation.close()


async def test_an_allowed_call_is_run_and_the_answer_goes_on_with_its_result() -> None:
    async with talking() as talk:
        wanted = await talk.ask("Let me see. ", CALL)
        assert talk.events[0] == events.ToolsChanged("One server is missing.")
        assert talk.events[-2] == events.Ended(Finish.END_OF_TEXT, calls=1)
        assert wanted == events.CallWanted(wanted.call, "now", "{}", "clock")
        assert not talk.conversation.task.is_answering  # a call may wait for ever
        again = Watch(talk.conversation)  # a page that is loaded again is asked, too
        async with aclosing(cast("Any", again.updates())) as updates:
            assert [(await anext(updates)).event for _ in range(2)][1] == wanted
        talk.conversation.calls.permit("another", events.Permission.DENIED)
        talk.conversation.calls.permit(wanted.call, events.Permission.ALWAYS)
        talk.box.answers.put_nowait("12:00")
        asked = await talk.until(events.Asked)
        assert talk.events[-3:-1] == [
            events.CallDecided(wanted.call, events.Permission.ALWAYS),
            events.CallAnswered(wanted.call, "12:00"),
        ]
        assert asked.options.results == (AnsweredCall(ToolCall(wanted.call, "now", "{}"), "12:00"),)
        assert (asked.question, asked.options.tools) == ("", ())
        assert (asked.options.seed, asked.options.max_tokens) == (3, 9)
        assert talk.conversation.publisher.answers[0].options.tools == talk.box.tools

        second = await talk.write(CALL)
        assert (second.waits, second.call != wanted.call) == (False, True)
        talk.box.answers.put_nowait("12:01")
        await talk.until(events.Asked)
        talk.engine.tell(events.Committed(tuple(map(ord, "Noon."))), END)
        assert (await talk.until(events.Ended)).calls == 0
        assert talk.engine.turns[0].startswith("[system]# Tools")
        assert talk.engine.turns[1:] == [
            f"[user]<tool_response>\n{time}\n</tool_response>" for time in ("12:00", "12:01")
        ]


async def test_the_model_learns_that_a_call_was_denied_or_that_there_is_no_such_tool() -> None:
    async with talking() as talk:
        wanted = await talk.ask(OTHER, CALL)
        assert (wanted.tool, wanted.waits, wanted.server) == ("tomorrow", False, "")
        wanted = await talk.until(events.CallWanted)
        talk.conversation.calls.permit(wanted.call, events.Permission.DENIED)
        asked = await talk.until(events.Asked)
        assert [(each.content, each.is_error) for each in asked.options.results] == [
            ("There is none.", True),
            (DENIED_WORDS, True),
        ]
        assert not talk.box.called.is_set()


async def test_a_conversation_remembers_whose_tool_it_was() -> None:
    async with talking() as talk:
        talk.conversation.calls.permit((await talk.ask(CALL)).call, events.Permission.ALWAYS)
        talk.box.answers.put_nowait("12:00")
        await talk.until(events.Asked)
        tools = talk.conversation.publisher.answers[0].options
        assert unpack_options(pack_options(tools)).tools == talk.box.tools
        talk.box.owner = "another clock"  # has a tool of that name, too
        assert not (await talk.write(CALL)).server
        assert (await talk.until(events.CallAnswered)).content == "There is none."


async def test_a_call_that_is_stopped_is_left_and_wanted_again_when_the_answer_is_continued() -> None:
    async with talking() as talk:
        first = await talk.ask(CALL)
        talk.conversation.calls.permit(first.call, events.Permission.ONCE)
        await talk.box.called.wait()
        assert talk.conversation.task.is_answering
        talk.conversation.task.stop()
        await talk.until(events.CallsLeft)
        assert not talk.conversation.task.is_answering
        talk.conversation.task.continue_answer(0)
        wanted = await talk.until(events.CallWanted)
        assert talk.events[-3:-1] == [
            events.Continued(talk.conversation.publisher.answers[0].options),
            events.Ended(END.finish, calls=1),
        ]
        assert wanted == first
        talk.conversation.task.continue_answer(0)  # another surface wants to be asked
        assert await talk.until(events.CallWanted) == first
        talk.conversation.task.ask("Something else?", OPTIONS)
        await talk.until(events.CallsLeft)
        assert (await talk.until(events.Asked)).question == "Something else?"
        talk.engine.tell(events.Committed((0,)), events.Ended(Finish.STOP))
        await talk.until(events.Ended)
        talk.conversation.task.ask("Never mind?", OPTIONS)
        assert (await talk.until(events.Asked)).question == "Never mind?"


async def test_a_long_result_is_cut_with_a_word_and_one_that_is_no_text_is_marked() -> None:
    async with talking() as talk:
        wanted = await talk.ask(CALL)
        talk.conversation.calls.permit(wanted.call, events.Permission.ONCE)
        talk.box.answers.put_nowait("\ud800" + "x" * (1 << 20))
        content = (await talk.until(events.Asked)).options.results[0].content
        assert content.startswith("\ufffdxxx")
        assert content.endswith(f"x\n[Cut: {(1 << 20) + 1 - MOST_RESULT:,} characters more.]")


async def test_a_model_that_calls_for_ever_is_stopped() -> None:
    async with talking() as talk:
        talk.conversation.calls.permit((await talk.ask(CALL)).call, events.Permission.ALWAYS)
        for _ in range(MOST_ROUNDS - 1):
            talk.box.answers.put_nowait("12:00")
            await talk.until(events.Asked)
            await talk.write(CALL)
        talk.box.answers.put_nowait("12:00")
        await talk.until(events.Asked)
        talk.engine.tell(events.Committed(tuple(map(ord, CALL))), END)
        assert f"{MOST_ROUNDS} times in a row" in (await talk.until(events.CallsLeft)).reason


async def test_calls_that_a_server_verifies_later_are_told_and_wait_for_the_user() -> None:
    tokens = tuple(map(ord, CALL))
    async with talking() as talk:
        talk.conversation.task.ask("When?", OPTIONS)
        await talk.until(events.Asked)
        talk.engine.tell(
            events.Committed(tokens[:1]), events.Provisional(tokens[1:]), events.Ended(END.finish, provisional=True)
        )
        assert (await talk.until(events.Ended)).calls == 0
        talk.engine.conversation.answer = list(tokens)
        talk.engine.tell(
            events.Earlier(events.Committed(tokens[1:], len(tokens) - 1)),
            events.Settled(tokens[1:], events.AnswerOutcome.CONFIRMED, END.finish),
        )
        assert (await talk.until(events.CallsLeft)).reason == "The answer calls a tool."
        assert not talk.box.called.is_set()
        talk.conversation.task.continue_answer(0)
        assert (await talk.until(events.CallWanted)).tool == "now"


async def test_results_that_no_server_has_read_are_the_same_turn_when_the_conversation_is_opened_again() -> None:
    call = ToolCall("call_1", "now", "{}")
    kept = [OPTIONS, replace(OPTIONS, results=(AnsweredCall(call, "12:00"),))]
    kept[0] = replace(kept[0], tools=(NOW,))
    options = [unpack_options(pack_options(each)) for each in kept]
    stored = StoredConversation(
        "id",
        "",
        0.0,
        0.0,
        ConversationOrigin("tiny"),
        (
            StoredAnswer(1, "When?", options[0], (1, 2), b"PT", standing=AnswerStatus.DECIDED, finish="end_of_text"),
            StoredAnswer(2, "", options[1]),
        ),
    )
    states: list[ConversationState] = []
    async with talking() as talk:
        talk.engine.restore = states.append  # type: ignore[attr-defined]
        talk.conversation.resume(stored)
        (job,) = states[0].unverified
        text = talk.engine.device.target.tokenizer.decode(job.turn([1, 2]))
        assert text == "[user]<tool_response>\n12:00\n</tool_response>"
