from __future__ import annotations

import json
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_client.conversation.answer_decoder import AnswerDecoder
from moa_client.conversation.answer_figures import LinkStatus
from moa_client.conversation.answer_text import AnswerText, Update
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
from moa_client.endpoint.answer_parts import AnswerMarkup
from moa_client.endpoint.asked import AnswerHeader
from moa_client.endpoint.openai.forms import ChatForm
from moa_client.endpoint.progress import AnswerProgress
from moa_client.tools.offer import ToolOffer
from moa_client.tools.reading.pieces import TextPiece
from moa_client.tools.thinking import ReasoningPiece, ThinkingReader, find_thinking
from moa_client.web.error_form import request_error
from moa_shared.errors import MismatchError, OverloadedError, RateLimitError
from moa_shared.protocol.finish_rule import Finish

ENDED = (Provisional((1,), added="Hi"), Ended(Finish.END_OF_TEXT, provisional=True))


def begun(*, ends: bool = False) -> AnswerProgress:
    progress = AnswerProgress(ends_unverified=ends, settle_seconds=10.0)
    progress.begin(LinkState.GOOD, 0.0)
    return progress


def tell(progress: AnswerProgress, *events: SurfaceEvent) -> None:
    for event in events:
        progress.apply(Update(event, 1), 0.0)


def shown(progress: AnswerProgress) -> tuple[str, str]:
    return progress.text.committed, progress.text.provisional


def lose(progress: AnswerProgress, at: float) -> None:
    progress.apply(Update(LinkChanged(LinkState.OFFLINE)), at)


def test_committed_text_adds_up_and_provisional_text_is_replaced() -> None:
    progress = begun()
    tell(progress, Committed((1, 2), text="He"), Provisional((3, 4), added="xy"))
    assert shown(progress) == ("He", "xy")
    tell(progress, Corrected(2), Committed((5,), text="y"))
    assert (*shown(progress), progress.text.tokens, progress.withdrawn) == ("Hey", "", 3, 2)
    assert not progress.is_over


HARMONY = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Good <b> day"


@pytest.mark.parametrize("whole", ["<think>\nhm, <b>\n</think>\n\nGood <think> day", HARMONY])
def test_provisional_text_is_told_apart_without_reading_the_answer_again(
    whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    thinking = find_thinking(whole)
    markup = AnswerMarkup(None, ToolOffer(), thinking, is_thinking=False)
    expected = AnswerProgress(ends_unverified=False, settle_seconds=10.0, split=markup.split())
    tell(expected, Provisional((1,), added=whole))
    reasoning, text = expected.ahead(whole)
    assert reasoning.startswith("hm")
    assert text.endswith("day")
    read = 0
    push = ThinkingReader.push

    def counted(reader: ThinkingReader, piece: str) -> list[ReasoningPiece | TextPiece]:
        nonlocal read
        read += len(piece)
        return push(reader, piece)

    monkeypatch.setattr(ThinkingReader, "push", counted)
    progress = AnswerProgress(ends_unverified=False, settle_seconds=10.0, split=markup.split())
    seen = markup.split()
    assert seen is not None
    for end in range(1, len(whole) + 1):
        tell(progress, Committed((1,), text=whole[end - 1]), Provisional((1,), added=whole[end:]))
        seen.read(whole[:end])
        for is_text, part in enumerate((seen.reasoning, seen.text)):
            assert part + progress.ahead(whole[end:])[is_text] == (reasoning, text)[is_text]
        read -= 2 * len(whole[end:])
        tell(progress, Corrected(1))
    assert read == 2 * len(whole)  # as committed text, once by each


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        (Finish.END_OF_TEXT, "stop"),
        (Finish.STOP, "stop"),
        (Finish.MAX_TOKENS, "length"),
        (Finish.CONTEXT, "length"),
        (Finish.LOOP, "length"),
    ],
)
def test_an_answer_that_the_server_has_ended_is_verified(finish: Finish, reason: str) -> None:
    progress = begun()
    tell(progress, Ended(finish, text="end"))
    assert (progress.reason, progress.is_verified, shown(progress)) == (reason, True, ("end", ""))


def test_an_answer_that_somebody_else_has_stopped_is_none() -> None:
    progress = begun()
    tell(progress, Ended(Finish.CANCELLED))
    assert progress.is_over
    assert progress.reason is None
    assert str(progress.failure) == snapshot("The answer was stopped before its end. Ask again.")


@pytest.mark.parametrize("outcome", [AnswerOutcome.CONFIRMED, AnswerOutcome.COMPLETED, AnswerOutcome.CORRECTED])
def test_an_answer_that_ended_without_the_server_waits_for_it(outcome: AnswerOutcome) -> None:
    progress = begun()
    tell(progress, *ENDED)
    assert not progress.is_over
    tell(progress, Committed((1,), text="He"), Settled((1, 2), outcome, Finish.MAX_TOKENS, text="llo"))
    assert (progress.reason, progress.is_verified) == ("length", True)
    assert (*shown(progress), progress.text.tokens) == ("Hello", "", 2)


def test_only_the_time_without_the_server_counts() -> None:
    progress = begun()
    assert progress.deadline is None
    lose(progress, 100.0)
    lose(progress, 102.0)
    assert progress.deadline == 110.0
    progress.apply(Update(LinkChanged(LinkState.BACK)), 104.0)
    assert progress.deadline is None
    lose(progress, 200.0)
    assert progress.deadline == 206.0  # four of the ten seconds are over


def test_each_update_may_tell_that_the_link_is_lost() -> None:
    progress = begun()
    status = LinkStatus(LinkState.OFFLINE, None, 0, 0, 0, 0)
    progress.apply(Update(Provisional((1,), added="x"), 1, status), 3.0)
    assert progress.deadline == 13.0


def test_the_link_may_be_lost_from_the_beginning() -> None:
    progress = AnswerProgress(ends_unverified=False, settle_seconds=10.0)
    progress.begin(LinkState.OFFLINE, 5.0)
    assert progress.deadline == 15.0


def test_an_answer_that_may_end_unverified_does_with_all_its_text() -> None:
    progress = begun(ends=True)
    tell(progress, Committed((1,), text="He"), Provisional((2,), added="y"))
    progress.give_up()
    assert (progress.reason, progress.is_verified) == ("length", False)
    assert (*shown(progress), progress.text.waiting) == ("He", "y", (2,))


def test_what_was_written_stays_when_the_device_holds_back_what_would_follow() -> None:
    progress = begun(ends=True)
    tell(progress, Provisional((2,), added="y"), HeldBack())
    assert (progress.text.provisional, progress.text.waiting) == ("y", (2,))


def test_its_reason_is_the_devices_where_it_has_ended() -> None:
    progress = begun(ends=True)
    tell(progress, *ENDED)
    progress.give_up()
    assert progress.reason == "stop"


@pytest.mark.parametrize("ends", [True, False])
def test_an_answer_without_a_word_fails_in_any_case(ends: bool) -> None:
    progress = begun(ends=ends)
    progress.give_up()
    assert str(progress.failure) == snapshot(
        "The server was lost for 10 s and has not verified the answer. Ask again when it is back."
    )


def test_an_answer_that_may_not_end_unverified_fails() -> None:
    progress = begun()
    tell(progress, Committed((1,), text="He"))
    progress.give_up()
    assert progress.failure is not None
    assert progress.reason is None


@pytest.mark.parametrize("ends", [True, False])
def test_what_the_server_refuses_to_verify_will_not_be(ends: bool) -> None:
    progress = begun(ends=ends)
    tell(progress, *ENDED)
    error = OverloadedError("No room.")
    tell(progress, Refused(error))
    assert progress.text.provisional == "Hi"
    assert (progress.reason, progress.failure) == (("stop", None) if ends else (None, error))


def test_the_first_failure_counts_whether_it_is_of_the_answer_or_of_the_link() -> None:
    progress, error = begun(ends=True), MismatchError("Another model.")
    progress.apply(Update(Failed(error), 0), 0.0)
    progress.apply(Update(Failed(OverloadedError("No room.")), 1), 0.0)
    assert progress.failure is error


def limit(progress: AnswerProgress, at: float) -> None:
    words = "The server lets this key read and write 600 tokens a minute."
    progress.apply(Update(LinkChanged(LinkState.WAITING, words, 11.2)), at)


def test_a_limit_before_an_answer_has_begun_is_the_requests_failure() -> None:
    progress = begun()
    limit(progress, 1.0)
    failure = progress.failure
    assert isinstance(failure, RateLimitError)
    assert str(failure) == snapshot(
        "The server lets this key read and write 600 tokens a minute. Ask again when the time in Retry-After is over."
    )
    response = request_error(failure).response()
    assert (response.status_code, response.headers["retry-after"]) == (429, "12")
    assert request_error(failure).fields["error"]["code"] == "rate_limit_exceeded"


def test_a_limit_in_an_answer_is_waited_for_however_long_it_takes() -> None:
    progress = begun()
    tell(progress, Committed((1,), text="He"))
    for at in (1.0, 100.0):
        limit(progress, at)
        assert (progress.is_over, progress.deadline) == (False, None)
    lose(progress, 101.0)
    assert progress.deadline == 111.0


def test_the_text_is_that_of_the_decoder_if_there_is_one() -> None:
    decoder = AnswerDecoder(AnswerText(), lambda tokens: "".join(f"<{token}>" for token in tokens))
    progress = AnswerProgress(ends_unverified=False, settle_seconds=10.0, decoder=decoder)
    for event in (Committed((5, 6), text="six"), Committed((7,), text="seven"), Ended(Finish.END_OF_TEXT)):
        progress.apply(Update(event, 1), 0.0)
    assert (progress.text.committed, progress.text.tokens, progress.reason) == ("<5><6><7>", 3, "stop")


def test_a_program_learns_that_another_level_continues_its_answer() -> None:
    def chunks(data: bytes) -> list[dict[str, Any]]:
        return [json.loads(each.removeprefix(b"data: ")) for each in data.split(b"\n\n") if b"{" in each]

    progress, form = begun(), ChatForm(AnswerHeader("1", 0, "tiny", "fp_int8", 7, 5), None)
    [begin] = chunks(form.first())
    tell(progress, Committed((1,), text="He"))
    [before] = chunks(form.next(progress))
    tell(progress, ExecutionChanged("float32", exact=False, fingerprint="fp_float32"), Committed((2,), text="y"))
    [after] = chunks(form.next(progress))
    tell(progress, Ended(Finish.END_OF_TEXT))
    [end] = chunks(form.last(progress))
    assert begin["system_fingerprint"] == before["system_fingerprint"] == "fp_int8"
    assert after["system_fingerprint"] == end["system_fingerprint"] == progress.fingerprint("fp_int8")
    assert progress.fingerprint("fp_int8") not in ("fp_int8", "fp_float32")
    assert ("moa" in before, after["moa"]) == (False, {"execution": "float32"})
    whole = ChatForm(AnswerHeader("1", 0, "tiny", "fp_int8", 7, 5), None).whole(progress)
    assert (whole["system_fingerprint"], whole["moa"]["execution"]) == (end["system_fingerprint"], "float32")
    other = begun()
    tell(other, ExecutionChanged("float32", exact=False, fingerprint="fp_float32"), Committed((1,), text="Hey"))
    assert other.fingerprint("fp_int8") == "fp_float32"  # all of it
