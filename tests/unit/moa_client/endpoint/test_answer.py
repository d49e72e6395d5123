"""One answer as a request sees it: its parts, its end, and how long it waits for a server that is lost."""

from __future__ import annotations

from time import process_time

import pytest
from moa_client.conversation.answer_text import AnswerDecoder, AnswerText, Update
from moa_client.conversation.events import (
    AnswerOutcome,
    Committed,
    Corrected,
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
from moa_client.endpoint.answer import Answer
from moa_client.endpoint.ask import Prompt
from moa_client.tools.answer_reader import CallPiece, Piece, TextPiece
from moa_client.tools.formats.json_calls import Hermes, Mistral
from moa_client.tools.thinking import find_thinking
from moa_client.tools.tool import ToolOffer
from moa_client.web.error_form import request_error
from moa_shared.errors import MismatchError, OverloadedError, RateLimitError
from moa_shared.protocol.finish_rule import Finish

from tests.support.scripted_answers import made_answer
from tests.support.tool_calls import TOOLS

ENDED = (Provisional((1,), added="Hi"), Ended(Finish.END_OF_TEXT, provisional=True))


def begun(prompt: Prompt | None = None, *, ends: bool = False) -> Answer:
    answer = made_answer(prompt, ends_unverified=ends)
    answer.on_link(LinkState.GOOD, 0.0)
    return answer


def tell(answer: Answer, *events: SurfaceEvent) -> None:
    for event in events:
        answer.apply(Update(event, 1), 0.0)


def shown(answer: Answer) -> tuple[str, str]:
    return answer.text.committed, answer.text.provisional


def lose(answer: Answer, at: float) -> None:
    answer.apply(Update(LinkChanged(LinkState.OFFLINE)), at)


def test_committed_text_adds_up_and_provisional_text_is_replaced() -> None:
    answer = begun()
    tell(answer, Committed((1, 2), text="He"), Provisional((3, 4), added="xy"))
    assert shown(answer) == ("He", "xy")
    tell(answer, Corrected(2), Committed((5,), text="y"))
    assert (*shown(answer), answer.text.tokens) == ("Hey", "", 3)
    assert not answer.is_over


def test_no_token_costs_more_because_the_answer_is_long() -> None:
    def seconds(tokens: int) -> float:
        answer, begin = begun(Prompt([], form=Hermes(), thinking=find_thinking("<think>"))), process_time()
        for _ in range(tokens):
            tell(answer, Provisional((1,), added=" a < b"), Committed((1,), confirmed=1, text=" a < b"))
            answer.take()
        return process_time() - begin

    assert seconds(16_000) < 2 + 32 * seconds(1000)


def test_reasoning_is_counted_in_tokens() -> None:
    answer = begun(Prompt([], thinking=find_thinking("<think>")))
    for word in ("<think>", "Hm", "</think>", "Good", " day"):
        tell(answer, Committed((1,), text=word))
    assert (answer.reasoning_tokens, answer.completion_tokens, begun().reasoning_tokens) == (3, 5, None)
    at_once = begun(Prompt([], thinking=find_thinking("<think>"), is_thinking=True))
    tell(at_once, Committed((1, 2, 3), text="Hm</think>Good"), Committed((4,), text=" day"))
    assert at_once.reasoning_tokens == 3


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
    answer = begun(Prompt([], form=Hermes(), offer=ToolOffer(TOOLS)))
    tell(answer, Committed((1,), text=text), Ended(finish))
    assert (answer.take(), answer.reason) == (pieces, reason)
    one = begun(Prompt([], form=Hermes(), offer=ToolOffer(TOOLS, is_parallel=False)))
    tell(one, Committed((1,), text=text), Ended(finish))
    assert (one.take(), one.reason) == ([piece for piece in pieces if piece != NEXT], reason)


def test_special_tokens_are_needed_where_they_are_marks() -> None:
    assert not Prompt([], form=Hermes(), thinking=find_thinking("<think>")).is_marked_by({"<|im_end|>": 2})
    assert Prompt([], form=Mistral()).is_marked_by({"</s>": 2, "[TOOL_CALLS]": 5})


def test_an_answer_that_the_server_has_ended_is_verified_unless_somebody_else_has_stopped_it() -> None:
    for finish in (Finish.END_OF_TEXT, Finish.STOP, Finish.MAX_TOKENS, Finish.CONTEXT, Finish.LOOP):
        answer = begun()
        tell(answer, Ended(finish, text="end"))
        reason = "stop" if finish in (Finish.END_OF_TEXT, Finish.STOP) else "length"
        assert (answer.reason, answer.is_verified, shown(answer)) == (reason, True, ("end", ""))
    answer = begun()
    tell(answer, Ended(Finish.CANCELLED))
    assert (answer.is_over, answer.reason) == (True, None)
    assert str(answer.failure) == "The answer was stopped before its end. Ask again."


@pytest.mark.parametrize("outcome", [AnswerOutcome.CONFIRMED, AnswerOutcome.COMPLETED, AnswerOutcome.CORRECTED])
def test_an_answer_that_ended_without_the_server_waits_for_it(outcome: AnswerOutcome) -> None:
    answer = begun()
    tell(answer, *ENDED)
    assert not answer.is_over
    tell(answer, Committed((1,), text="He"), Settled((1, 2), outcome, Finish.MAX_TOKENS, text="llo"))
    assert (answer.reason, answer.is_verified) == ("length", True)
    assert (*shown(answer), answer.text.tokens) == ("Hello", "", 2)


def test_only_the_time_without_the_server_counts() -> None:
    answer = begun()
    assert answer.deadline is None
    lose(answer, 100.0)
    lose(answer, 102.0)
    assert answer.deadline == 110.0
    answer.apply(Update(LinkChanged(LinkState.BACK)), 104.0)
    assert answer.deadline is None
    lose(answer, 200.0)
    assert answer.deadline == 206.0  # four of the ten seconds are over


def test_each_update_may_tell_that_the_link_is_lost_and_so_may_the_beginning() -> None:
    answer, status = begun(), LinkStatus(LinkState.OFFLINE, None, 0, 0, 0, 0)
    answer.apply(Update(Provisional((1,), added="x"), 1, status), 3.0)
    assert answer.deadline == 13.0
    answer = begun()
    answer.on_link(LinkState.OFFLINE, 5.0)
    assert answer.deadline == 15.0


HE, Y = Committed((1,), text="He"), Provisional((2,), added="y")


@pytest.mark.parametrize(
    ("ends", "events", "reason", "text"),
    [
        (True, [HE, Y], "length", ("He", "y")),
        (True, [Y, HeldBack()], "length", ("", "y")),
        (True, ENDED, "stop", ("", "Hi")),  # the device's
        (True, [], None, ("", "")),
        (False, [], None, ("", "")),
        (False, [HE], None, ("He", "")),
    ],
)
def test_what_becomes_of_an_answer_whose_server_stays_away(
    ends: bool, events: list[SurfaceEvent], reason: str | None, text: tuple[str, str]
) -> None:
    answer = begun(ends=ends)
    tell(answer, *events)
    answer.give_up()
    assert (answer.reason, answer.is_verified, shown(answer)) == (reason, False, text)
    lost = "The server was lost for 10 s and has not verified the answer. Ask again when it is back."
    assert (str(answer.failure) == lost) == (reason is None)


@pytest.mark.parametrize("ends", [True, False])
def test_what_the_server_refuses_to_verify_will_not_be(ends: bool) -> None:
    answer = begun(ends=ends)
    tell(answer, *ENDED)
    error = OverloadedError("No room.")
    tell(answer, Refused(error))
    assert answer.text.provisional == "Hi"
    assert (answer.reason, answer.failure) == (("stop", None) if ends else (None, error))


def test_the_first_failure_counts_whether_it_is_of_the_answer_or_of_the_link() -> None:
    answer, error = begun(ends=True), MismatchError("Another model.")
    tell(answer, Failed(error), Failed(OverloadedError("No room.")))
    assert answer.failure is error


def limit(answer: Answer, at: float) -> None:
    words = "The server lets this key read and write 600 tokens a minute."
    answer.apply(Update(LinkChanged(LinkState.WAITING, words, 11.2)), at)


def test_a_limit_before_an_answer_has_begun_is_the_requests_failure() -> None:
    answer = begun()
    limit(answer, 1.0)
    failure = answer.failure
    assert isinstance(failure, RateLimitError)
    response = request_error(failure).response()
    assert (response.status_code, response.headers["retry-after"]) == (429, "12")
    assert request_error(failure).fields_at("")["error"]["code"] == "rate_limit_exceeded"


def test_a_limit_in_an_answer_is_waited_for_however_long_it_takes() -> None:
    answer = begun()
    tell(answer, Committed((1,), text="He"))
    for at in (1.0, 100.0):
        limit(answer, at)
        assert (answer.is_over, answer.deadline) == (False, None)
    lose(answer, 101.0)
    assert answer.deadline == 111.0


def test_the_text_is_that_of_the_decoder_if_there_is_one() -> None:
    decoder = AnswerDecoder(AnswerText(), lambda tokens: "".join(f"<{token}>" for token in tokens))
    answer = made_answer(decoder=decoder)
    for event in (Committed((5, 6), text="six"), Committed((7,), text="seven"), Ended(Finish.END_OF_TEXT)):
        answer.apply(Update(event, 1), 0.0)
    assert (answer.text.committed, answer.text.tokens, answer.reason) == ("<5><6><7>", 3, "stop")
