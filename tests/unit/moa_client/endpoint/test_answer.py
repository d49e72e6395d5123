"""One answer as a request sees it: its parts, its end, and how long it waits for a server that is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from moa_client.conversation.answer_text import AnswerDecoder, AnswerText, Update
from moa_client.conversation.events import (
    AnswerOutcome,
    Committed,
    Corrected,
    Ended,
    ExecutionChanged,
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
from moa_client.endpoint.answer import Answer, AnswerHeader
from moa_client.endpoint.ask import Prompt
from moa_client.endpoint.openai import ChatForm
from moa_client.tools.answer_reader import CallPiece, Piece
from moa_client.tools.formats.harmony import Harmony
from moa_client.tools.formats.json_calls import Hermes, Mistral
from moa_client.tools.thinking import ReasoningPiece, TextPiece, ThinkingReader, find_thinking
from moa_client.tools.tool import ToolOffer
from moa_client.web.error_form import request_error
from moa_shared.errors import MismatchError, OverloadedError, RateLimitError
from moa_shared.protocol.finish_rule import Finish

from tests.support.tool_calls import TOOLS

ENDED = (Provisional((1,), added="Hi"), Ended(Finish.END_OF_TEXT, provisional=True))


PLAIN = Prompt([])


def begun(prompt: Prompt = PLAIN, *, ends: bool = False) -> Answer:
    answer = Answer(ends_unverified=ends, settle_seconds=10.0, identifier="1", prompt=prompt)
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
    assert (*shown(answer), answer.text.tokens, answer.withdrawn) == ("Hey", "", 3, 2)
    assert not answer.is_over


HARMONY = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Good <b> day"


@pytest.mark.parametrize("whole", ["<think>\nhm, <b>\n</think>\n\nGood <think> day", HARMONY])
def test_provisional_text_is_told_apart_without_reading_the_answer_again(
    whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = Harmony() if whole == HARMONY else None
    markup = Prompt([], form=form, thinking=find_thinking(whole))
    reasoning, text = begun(markup).ahead(whole)
    assert reasoning.startswith("hm")
    assert text.endswith("day")
    read = 0
    push = ThinkingReader.push

    def counted(reader: ThinkingReader, piece: str) -> list[ReasoningPiece | TextPiece]:
        nonlocal read
        read += len(piece)
        return push(reader, piece)

    monkeypatch.setattr(ThinkingReader, "push", counted)
    answer, seen = begun(markup), ["", ""]
    for end in range(1, len(whole) + 1):
        tell(answer, Committed((1,), text=whole[end - 1]), Provisional((1,), added=whole[end:]))
        for piece in answer.take():
            assert isinstance(piece, ReasoningPiece | TextPiece)
            seen[isinstance(piece, TextPiece)] += piece.text
        assert [part + more for part, more in zip(seen, answer.ahead(whole[end:]), strict=True)] == [reasoning, text]
        read -= len(whole[end:])
        tell(answer, Corrected(1))
    assert read == len(whole)  # as committed text, once


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
        ("<tool_call>", Finish.END_OF_TEXT, [TextPiece("<tool_call>")], "length"),
        (CALL[:61], Finish.END_OF_TEXT, [TextPiece(CALL[:61])], "length"),
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
    answer = Answer(ends_unverified=False, settle_seconds=10.0, prompt=PLAIN, decoder=decoder)
    for event in (Committed((5, 6), text="six"), Committed((7,), text="seven"), Ended(Finish.END_OF_TEXT)):
        answer.apply(Update(event, 1), 0.0)
    assert (answer.text.committed, answer.text.tokens, answer.reason) == ("<5><6><7>", 3, "stop")


def test_a_program_learns_that_another_level_continues_its_answer() -> None:
    def chunks(data: bytes) -> list[dict[str, Any]]:
        return [json.loads(each.removeprefix(b"data: ")) for each in data.split(b"\n\n") if b"{" in each]

    answer, form = begun(), ChatForm(AnswerHeader("1", 0, "tiny", "fp_int8", 7, 5))
    [begin] = chunks(form.first(answer))
    tell(answer, Committed((1,), text="He"))
    [before] = chunks(form.next(answer))
    tell(answer, ExecutionChanged("float32", exact=False, fingerprint="fp_float32"), Committed((2,), text="y"))
    [after] = chunks(form.next(answer))
    tell(answer, Ended(Finish.END_OF_TEXT))
    [end] = chunks(form.last(answer))
    assert begin["system_fingerprint"] == before["system_fingerprint"] == "fp_int8"
    assert after["system_fingerprint"] == end["system_fingerprint"] == answer.fingerprint("fp_int8")
    assert answer.fingerprint("fp_int8") not in ("fp_int8", "fp_float32")
    assert ("moa" in before, after["moa"]) == (False, {"execution": "float32"})
    whole = ChatForm(AnswerHeader("1", 0, "tiny", "fp_int8", 7, 5)).whole(answer)
    assert (whole["system_fingerprint"], whole["moa"]["execution"]) == (end["system_fingerprint"], "float32")
    other = begun()
    tell(other, ExecutionChanged("float32", exact=False, fingerprint="fp_float32"), Committed((1,), text="Hey"))
    assert other.fingerprint("fp_int8") == "fp_float32"  # all of it
