"""Ctrl-C while an answer runs; answers that end without the server."""

import asyncio
import os
import signal
from typing import cast

import pytest
from moa_client.chat.ask import AnswerFollower, interruptible
from moa_client.chat.keys import Permit, unasked
from moa_client.chat.views import PipeView
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.events import (
    Asked,
    CallAnswered,
    CallDecided,
    CallsLeft,
    CallWanted,
    Committed,
    Ended,
    Event,
    Failed,
    LinkChanged,
    LinkState,
    Permission,
    Provisional,
    Refused,
)
from moa_client.conversation.options import AnswerOptions
from moa_client.surface.conversation import OpenConversation, Subscription
from moa_shared.errors import ContextLengthError
from moa_shared.protocol.finish_rule import Finish

from tests.support.answer_events import Told, letters
from tests.support.messages import raises


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


async def test_the_second_interrupt_does_not_wait_for_the_server() -> None:
    begun, asked, abandoned, cleaned_up = (asyncio.Event() for _ in range(4))

    async def answer() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()

    waiting = asyncio.ensure_future(interruptible(asyncio.ensure_future(answer()), asked.set, abandoned.set))
    await begun.wait()
    interrupt()
    await asked.wait()
    assert not waiting.done()
    interrupt()
    assert not await waiting
    assert (abandoned.is_set(), cleaned_up.is_set()) == (True, True)


# ---------------------------------------------------------------- one question after another


class Conversation(Subscription):
    """Tells these events of the answer, and these updates as they are, after each question, all at once."""

    is_gone = False

    def __init__(self, *events: Event | Update) -> None:
        super().__init__()
        self.answers: list[AnswerText] = []
        self.told: list[Told] = []
        self.events = events
        self.permitted: list[tuple[str, Permission]] = []

    def ask(self, question: str, options: AnswerOptions) -> None:
        if not isinstance(self.events[0], Update):
            self.begin(question)
        self.script(*self.events)

    def stop(self) -> None:
        raise AssertionError("There is no answer to stop any more.")

    abandon = stop

    def begin(self, question: str) -> None:
        self.told.append(Told(letters, question, len(self.told) + 1))
        self.push_update(Update(Asked(question), len(self.told)))

    def script(self, *events: Event | Update) -> None:
        for event in events:
            self.push_update(event if isinstance(event, Update) else self.told[-1].tell(event))

    def permit(self, call: str, permission: Permission) -> None:
        """The second call is answered elsewhere."""
        self.permitted.append((call, permission))
        self.script(
            Update(CallDecided("one", permission), 1),
            Update(CallAnswered("one", "2"), 1),
            Update(CallWanted("two", "sub", "{}", "test"), 1),
            Update(CallDecided("two", Permission.DENIED), 1),
            Update(CallAnswered("two", "No.", is_error=True), 1),
        )
        self.begin("")
        self.script(Committed((1,)), Ended(Finish.END_OF_TEXT, calls=1), Update(CallsLeft("Too many."), 2))


ALONE = (Committed((0,)), Provisional((1, 2)), Ended(Finish.MAX_TOKENS, provisional=True))
TOO_LONG = ContextLengthError("Too long.")
TOO_LONG_WORDS = "Too long. Shorten the prompt, /reset the conversation, or raise the server's --context-length."


class OnAPipe:
    """Asks, and collects what a pipe is given."""

    def __init__(self, conversation: Conversation, settle_seconds: float = 0.0, permit: Permit | None = None) -> None:
        self.out: list[str] = []
        self.remarks: list[str] = []
        view = PipeView(self.out.append, self.remarks.append, unverified=True)
        permit = permit or unasked((), self.remarks.append)
        self.follower = AnswerFollower(cast("OpenConversation", conversation), view, permit, settle_seconds)

    async def answer(self, question: str = "") -> bool:
        _, finished = await self.follower.answer(question, AnswerOptions(max_tokens=8))
        return finished

    @property
    def text(self) -> str:
        return "".join(self.out)


async def test_the_time_runs_only_while_the_server_is_away() -> None:
    asked = OnAPipe(Conversation(*ALONE, LinkChanged(LinkState.BACK), LinkChanged(LinkState.OFFLINE, "cut")), 0.01)
    assert await asked.answer()
    assert asked.remarks[:2] == ["(the server is back)", "(offline: cut)"]
    there = Conversation(*ALONE, LinkChanged(LinkState.BACK))
    asked = OnAPipe(there, 0.01)
    waiting = asyncio.ensure_future(asked.answer())
    for _ in range(100):  # until all was read: nothing in it waits
        await asyncio.sleep(0)
    await asyncio.wait((waiting,), timeout=0.05)
    assert not waiting.done()
    interrupt()
    await waiting


async def test_the_time_counts_from_the_loss_and_not_from_where_the_answer_ended() -> None:
    conversation = Conversation(Committed((0,)), LinkChanged(LinkState.OFFLINE, "cut"))
    asked = OnAPipe(conversation, 0.2)
    waiting = asyncio.ensure_future(asked.answer())
    await asyncio.wait((waiting,), timeout=0.25)  # so long the device holds its text back
    asyncio.get_running_loop().call_later(0.15, waiting.cancel)
    conversation.script(Provisional((1, 2)), Ended(Finish.MAX_TOKENS, provisional=True))
    assert await waiting
    assert asked.text == "abc\n"


async def test_calls_are_asked_about_until_they_are_decided_and_all_answers_are_shown() -> None:
    questions: list[str] = []

    async def permit(wanted: CallWanted) -> Permission:
        questions.append(wanted.call)
        if wanted.call == "two":
            await asyncio.Event().wait()  # a key that never comes
        return Permission.ONCE

    wanted = Update(CallWanted("one", "add", '{"a": 1}', "test"), 1)
    conversation = Conversation(Committed((0,)), Ended(Finish.END_OF_TEXT, calls=2), wanted)
    asked = OnAPipe(conversation, permit=permit)
    assert await asked.answer()
    assert asked.text == "a\nb\n"
    assert (conversation.permitted, asked.follower.texts[-1].committed) == ([("one", Permission.ONCE)], "b")
    assert asked.remarks == [
        '* add {"a": 1} (a tool of test)',
        "  yes",
        "= 2",
        "* sub {} (a tool of test)",
        "  no",
        "! No.",
        "(Too many. /continue takes it up.)",
    ]


async def test_a_refused_answer_is_reported_next_to_the_next_one() -> None:
    conversation = Conversation(*ALONE)
    asked = OnAPipe(conversation)
    await asked.answer("first")
    earlier = asked.follower.take(conversation.told[0].tell(Refused(TOO_LONG)))
    assert earlier is not None
    assert (earlier.question, earlier.committed + earlier.provisional) == ("first", "abc")
    assert not asked.follower.unsettled


BEGUN, REFUSED = Update(Asked("why?"), 1), Update(Failed(TOO_LONG, taken_back=True))
WRITTEN = Update(Committed((0,), text="a"), 1)


@pytest.mark.parametrize(
    ("updates", "text"),
    [((BEGUN, WRITTEN, Update(Failed(TOO_LONG, text="b"), 1)), "ab\n"), ((REFUSED,), ""), ((BEGUN, REFUSED), "")],
)
async def test_why_an_answer_ends_early_or_never_begins_is_an_error(updates: tuple[Update, ...], text: str) -> None:
    asked = OnAPipe(Conversation(*updates))
    with raises(ContextLengthError, TOO_LONG_WORDS):
        await asked.answer("why?")
    assert asked.text == text


async def test_what_failed_before_and_what_another_surface_asked_for_is_not_this_answer() -> None:
    other = Update(Asked("else"), 1), WRITTEN, Update(Ended(Finish.STOP), 1)
    mine = Update(Asked("why?"), 2), Update(Committed((1,), text="b"), 2), Update(Ended(Finish.STOP), 2)
    asked = OnAPipe(Conversation(Update(Failed(TOO_LONG)), *other, *mine))
    assert await asked.answer("why?")
    assert (asked.text, asked.remarks) == ("b\n", [f"Error: {TOO_LONG_WORDS}"])
