"""One answer as a request sees it: its parts, its end, and how long it waits for a server that is lost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from time import process_time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.conversation.answer_text import Update
from moa_client.conversation.events import (
    AnswerOutcome,
    Committed,
    Ended,
    Failed,
    HeldBack,
    LinkChanged,
    LinkState,
    Provisional,
    Refused,
    Settled,
    SurfaceEvent,
)
from moa_client.conversation.figures import LinkStatus
from moa_client.endpoint.answer import REASONS, Answer
from moa_client.endpoint.ask import Prompt
from moa_client.endpoint.tokens import ToldTokens
from moa_client.tools.answer_reader import CallPiece, Piece, TextPiece
from moa_client.tools.formats.json_calls import Hermes
from moa_client.tools.thinking import find_thinking
from moa_client.tools.tool import ToolOffer
from moa_shared.errors import MismatchError, OverloadedError
from moa_shared.protocol.finish_rule import Finish
from moa_shared.sampling.settings import TokenChances

from tests.support.scripted_answers import made_answer
from tests.support.tool_calls import TOOLS

STANDALONE = (Provisional((1,), added="Hi"), Ended(Finish.END_OF_TEXT, provisional=True))
HE, Y = Committed((1,), text="He"), Provisional((2,), added="y")


def told(*events: SurfaceEvent, **more: Any) -> Answer:
    answer = made_answer(**more)
    answer.on_link(LinkState.GOOD, 0.0)
    for event in events:
        answer.apply(Update(event, 1), 0.0)
    return answer


def shown(answer: Answer) -> tuple[str, str]:
    return answer.text.committed, answer.text.provisional


def test_no_token_costs_more_because_the_answer_is_long() -> None:
    def seconds(tokens: int) -> float:
        answer, begin = told(prompt=Prompt([], form=Hermes(), thinking=find_thinking("<think>"))), process_time()
        for _ in range(tokens):
            for event in (Provisional((1,), added=" a < b"), Committed((1,), confirmed=1, text=" a < b")):
                answer.apply(Update(event, 1), 0.0)
            answer.take()
        return process_time() - begin

    assert seconds(16_000) < 2 + 32 * seconds(1000)


def test_reasoning_is_counted_in_tokens() -> None:
    prompt = Prompt([], thinking=find_thinking("<think>"))
    words = ("<think>", "Hm", "</think>", "Good", " day")
    answer = told(*(Committed((1,), text=word) for word in words), prompt=prompt)
    assert (answer.reasoning_tokens, answer.completion_tokens, told().reasoning_tokens) == (3, 5, None)
    events = Committed((1, 2, 3), text="Hm</think>Good"), Committed((4,), text=" day")
    prompt = Prompt([], thinking=find_thinking("<think>"), is_thinking=True)
    assert told(*events, prompt=prompt).reasoning_tokens == 3


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
PARIS, NEXT = CallPiece(0, "get_weather", '{"city": "Paris"}'), CallPiece(1, "now", "{}")


@pytest.mark.parametrize(
    ("text", "finish", "pieces", "reason"),
    [
        ("Hello.", Finish.END_OF_TEXT, [TextPiece("Hello.")], "stop"),
        (CALL, Finish.END_OF_TEXT, [PARIS], "tool_calls"),
        (f"See.\n{CALL}\n{NOW}", Finish.END_OF_TEXT, [TextPiece("See."), PARIS, NEXT], "tool_calls"),
        (CALL, Finish.MAX_TOKENS, [PARIS], "length"),
        ("<tool_call> is a tag", Finish.END_OF_TEXT, [TextPiece("<tool_call> is a tag")], "stop"),
        (CALL[:61], Finish.MAX_TOKENS, [TextPiece(CALL[:61])], "length"),
    ],
)
def test_why_an_answer_that_may_call_has_ended(text: str, finish: Finish, pieces: list[Piece], reason: str) -> None:
    for is_parallel in (True, False):
        prompt = Prompt([], form=Hermes(), offer=ToolOffer(TOOLS, is_parallel=is_parallel))
        answer = told(Committed((1,), text=text), Ended(finish), prompt=prompt)
        assert answer.take() == [piece for piece in pieces if is_parallel or piece != NEXT]
        assert answer.reason == reason


def test_an_answer_that_the_server_has_ended_is_verified_unless_somebody_else_has_stopped_it() -> None:
    for finish in Finish:
        answer = told(Ended(finish, text="end"))
        assert (answer.is_over, shown(answer)) == (True, ("end", ""))
        reason = REASONS.get(finish)
        assert (answer.reason, answer.is_verified) == (reason, reason is not None)
        stopped = "The answer was stopped before its end. Ask again."
        assert str(answer.failure) == ("None" if reason else stopped)
    assert (REASONS[Finish.STOP], REASONS[Finish.LOOP]) == ("stop", "length")


def test_an_answer_that_ended_without_the_server_waits_for_it() -> None:
    assert not told(*STANDALONE).is_over
    answer = told(*STANDALONE, HE, Settled((1, 2), AnswerOutcome.CORRECTED, Finish.MAX_TOKENS, text="llo"))
    assert (answer.reason, answer.is_verified) == ("length", True)
    assert (*shown(answer), answer.text.tokens) == ("Hello", "", 2)


def test_only_the_time_without_the_server_counts() -> None:
    answer = told()
    assert answer.deadline is None
    for state, at, deadline in (
        (LinkState.OFFLINE, 100.0, 110.0),
        (LinkState.OFFLINE, 102.0, 110.0),
        (LinkState.BACK, 104.0, None),
        (LinkState.OFFLINE, 200.0, 206.0),  # four of the ten seconds are over
    ):
        answer.apply(Update(LinkChanged(state)), at)
        assert answer.deadline == deadline
    answer, status = told(), LinkStatus(LinkState.OFFLINE, None, 0, 0, 0, 0)
    answer.apply(Update(Provisional((1,), added="x"), 1, status), 3.0)  # each update may tell it
    assert answer.deadline == 13.0
    answer = told()
    answer.on_link(LinkState.OFFLINE, 5.0)  # and so may the beginning
    assert answer.deadline == 15.0


@pytest.mark.parametrize(
    ("ends", "events", "reason", "text"),
    [
        (True, [HE, Y], "length", ("He", "y")),
        (True, [Y, HeldBack()], "length", ("", "y")),
        (True, STANDALONE, "stop", ("", "Hi")),  # the device's
        (True, [], None, ("", "")),
        (False, [], None, ("", "")),
        (False, [HE], None, ("He", "")),
    ],
)
def test_what_becomes_of_an_answer_whose_server_stays_away(
    ends: bool, events: list[SurfaceEvent], reason: str | None, text: tuple[str, str]
) -> None:
    answer = told(*events, ends_unverified=ends)
    answer.give_up()
    assert (answer.reason, answer.is_verified, shown(answer)) == (reason, False, text)
    lost = "The server was lost for 10 s and has not verified the answer. Ask again when it is back."
    assert (str(answer.failure) == lost) == (reason is None)


def test_what_the_server_refuses_to_verify_will_not_be_and_the_first_failure_counts() -> None:
    error = OverloadedError("No room.")
    for ends, end in ((True, ("stop", None)), (False, (None, error))):
        answer = told(*STANDALONE, Refused(error), ends_unverified=ends)
        assert answer.text.provisional == "Hi"
        assert (answer.reason, answer.failure) == end
    first = MismatchError("Another model.")
    assert told(Failed(first), Failed(error), ends_unverified=True).failure is first


# ------------------------------------------------------------ chances of tokens

END = 300  # a special token without text
BYTES: Any = SimpleNamespace(token_bytes=lambda token: bytes([token]))


def decode(tokens: Sequence[int]) -> str:
    return bytes(token for token in tokens if token != END).decode("utf-8", "replace")


@given(st.text(max_size=8), st.integers(0, 8))
def test_texts_add_up_wherever_the_text_is_cut(text: str, length: int) -> None:
    tokens, taken = [*text.encode(), END], ToldTokens(BYTES, decode)
    taken.take(tokens, [TokenChances(-float(number)) for number, _ in enumerate(tokens)])
    taken.finish(text[:length])
    assert "".join(token.text for token in taken.tokens) == text[:length]
    assert [token.start for token in taken.tokens] == [0, *accumulate(len(token.text) for token in taken.tokens)][:-1]
    assert [token.chance for token in taken.tokens] == [-float(number) for number, _ in enumerate(tokens)]


def test_a_character_s_text_comes_with_its_last_token_and_what_the_tokenizer_leaves_out_is_left_out() -> None:
    taken = ToldTokens(BYTES, lambda tokens: decode(tokens).removeprefix(" "))
    taken.take(" aé".encode(), [TokenChances(-1.0, (0x62, 0xC3), (-0.5, -0.75))] * 4)
    taken.finish("aé")
    assert [token.text for token in taken.tokens] == ["", "a", "", "é"]
    assert taken.tokens[1].likeliest == ((b"b", -0.5), (b"\xc3", -0.75))
