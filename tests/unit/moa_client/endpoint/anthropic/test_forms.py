"""Answers as Anthropic has them, made of the parts of an answer that a test writes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from moa_client.conversation.answer_text import Update
from moa_client.conversation.events import Committed, Ended, LinkState
from moa_client.endpoint.answer_parts import AnswerMarkup, AnswerParts
from moa_client.endpoint.anthropic.forms import MessageForm
from moa_client.endpoint.asked import AnswerHeader
from moa_client.endpoint.progress import AnswerProgress
from moa_client.endpoint.stop_search import StopSearch
from moa_client.tools.formats.hermes import Hermes
from moa_client.tools.offer import ToolOffer
from moa_client.tools.thinking import find_thinking
from moa_client.tools.tool import Tool
from moa_client.web.error_form import RequestError
from moa_shared.protocol.finish_rule import Finish

HEADER = AnswerHeader("1", 0, "tiny", "fp", 7, 5)
CALLED = (
    "<think>Hm",
    "m</think>",
    "I look. ",
    '<tool_call>{"name": "now", ',
    '"arguments": {"zone": ',
    '"UTC"}}</tool_call>',
)
CUT = (*CALLED[:-1], '"U')


def form_of(*, shows_thinking: bool = True) -> MessageForm:
    """The form of an answer that may think and call a tool."""
    markup = AnswerMarkup(Hermes(), ToolOffer((Tool("now"),)), find_thinking("<think>"), is_thinking=False)
    return MessageForm(HEADER, AnswerParts(markup, "1"), shows_thinking=shows_thinking)


def told(
    form: MessageForm, words: tuple[str, ...], finish: Finish, stops: StopSearch | None = None
) -> tuple[Any, bytes]:
    """What a whole answer and a stream of it are sent as; `form` is of the stream."""
    progress = AnswerProgress(ends_unverified=False, settle_seconds=1.0, stops=stops)
    progress.begin(LinkState.GOOD, 0.0)
    stream = form.first()
    for number, word in enumerate(words):
        progress.apply(Update(Committed((number,), text=word), 1), 0.0)
        stream += form.next(progress)
    progress.apply(Update(Ended(finish), 1), 0.0)
    return progress, stream + form.last(progress)


def events_of(stream: bytes) -> list[tuple[str, dict[str, Any]]]:
    events = []
    for each in stream.decode().split("\n\n")[:-1]:
        name, data = each.split("\n")
        fields = json.loads(data.removeprefix("data: "))
        assert name == f"event: {fields['type']}"
        events.append((fields.pop("type"), fields))
    return events


def test_a_stream_has_blocks_in_turn() -> None:
    _, stream = told(form_of(), CALLED, Finish.END_OF_TEXT)
    events = events_of(stream)
    blocks = [fields for name, fields in events if name == "content_block_start"]
    assert [(each["index"], each["content_block"]["type"]) for each in blocks] == [
        (0, "thinking"),
        (1, "text"),
        (2, "tool_use"),
    ]
    deltas = [fields for name, fields in events if name == "content_block_delta"]
    texts = dict.fromkeys(range(3), "")
    for each in deltas:
        texts[each["index"]] += (
            each["delta"].get("thinking") or each["delta"].get("text") or each["delta"].get("partial_json")
        )
    assert (texts[0], texts[1].rstrip(), json.loads(texts[2])) == ("Hmm", "I look.", {"zone": "UTC"})
    open_blocks: list[int] = []
    for name, fields in events:
        if name == "content_block_start":
            assert not open_blocks
            open_blocks.append(fields["index"])
        elif name == "content_block_delta":
            assert open_blocks == [fields["index"]]
        elif name == "content_block_stop":
            assert open_blocks.pop() == fields["index"]
    assert [name for name, _ in events[-2:]] == ["message_delta", "message_stop"]
    assert events[-2][1]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert events[-2][1]["usage"]["output_tokens"] == len(CALLED)
    assert events[0][1]["message"]["usage"]["input_tokens"] == 7


@pytest.mark.parametrize(("words", "reason", "given"), [(CALLED, "tool_use", "UTC"), (CUT, "max_tokens", "U")])
def test_a_whole_answer_has_the_same_blocks_and_a_cut_call_what_came_of_it(
    words: tuple[str, ...], reason: str, given: str
) -> None:
    progress, _ = told(form_of(), words, Finish.END_OF_TEXT if words == CALLED else Finish.MAX_TOKENS)
    whole = form_of().whole(progress)
    assert whole["stop_reason"] == reason
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use"]
    assert whole["content"][2]["input"] == {"zone": given}


def test_thinking_may_be_left_out() -> None:
    progress, stream = told(form_of(shows_thinking=False), CALLED, Finish.END_OF_TEXT)
    assert b"Hm" not in stream
    assert events_of(stream)[1][1]["index"] == 0
    assert [block["type"] for block in form_of(shows_thinking=False).whole(progress)["content"]] == ["text", "tool_use"]


@pytest.mark.parametrize(
    ("finish", "reason", "stop"),
    [
        (Finish.END_OF_TEXT, "end_turn", None),
        (Finish.STOP, "stop_sequence", "END"),
        (Finish.MAX_TOKENS, "max_tokens", None),
        (Finish.LOOP, "max_tokens", None),
        (Finish.CONTEXT, "model_context_window_exceeded", None),
    ],
)
def test_why_an_answer_has_ended(finish: Finish, reason: str, stop: str | None) -> None:
    stops = StopSearch(("STOP", "END"), lambda tokens: "Good day END STOP")
    progress, _ = told(MessageForm(HEADER, None, shows_thinking=True), ("Good day ",), finish, stops)
    whole = MessageForm(HEADER, None, shows_thinking=True).whole(progress)
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, stop)


def test_an_error_ends_a_stream_in_its_form() -> None:
    events = events_of(form_of().failed(RequestError(503, "The server was lost.")))
    assert events == [("error", {"error": {"type": "overloaded_error", "message": "The server was lost."}})]
