"""The items of an output, and the events that tell of them."""

from __future__ import annotations

from typing import Any

from inline_snapshot import snapshot
from moa_client.endpoint.answer_parts import Call, Part
from moa_client.endpoint.responses.output import OutputItems
from moa_client.tools.reading.pieces import CallArguments, CallEnded, CallStarted, TextPiece
from moa_client.tools.thinking import ReasoningPiece

CALLS = [Call("call_1", "now"), Call("call_2", "then")]


def told(parts: list[Part], *, is_whole: bool = True) -> tuple[OutputItems, list[dict[str, Any]]]:
    """The output of these parts, and its events."""
    output = OutputItems("1", CALLS)
    events = [event for part in parts for event in output.take(part)]
    return output, [*events, *output.finish(is_whole=is_whole)]


def test_reasoning_text_and_calls_are_items_in_their_order() -> None:
    output, events = told(
        [
            ReasoningPiece("Let me "),
            ReasoningPiece("think."),
            TextPiece("\n"),
            TextPiece("See:"),
            CallStarted(0, "now"),
            CallArguments(0, "{"),
            CallArguments(0, "}"),
            CallEnded(0),
            TextPiece("\n"),
            CallStarted(1, "then"),
            CallArguments(1, "{}"),
            CallEnded(1),
        ]
    )
    assert output.items == snapshot(
        [
            {
                "id": "rs_100",
                "type": "reasoning",
                "status": "completed",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Let me think."}],
            },
            {
                "id": "msg_101",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [
                    {
                        "type": "output_text",
                        "text": """\

See:\
""",
                        "annotations": [],
                        "logprobs": [],
                    }
                ],
            },
            {
                "id": "fc_102",
                "type": "function_call",
                "status": "completed",
                "call_id": "call_1",
                "name": "now",
                "arguments": "{}",
            },
            {
                "id": "fc_103",
                "type": "function_call",
                "status": "completed",
                "call_id": "call_2",
                "name": "then",
                "arguments": "{}",
            },
        ]
    )
    assert [event["type"].removeprefix("response.") for event in events] == snapshot(
        [
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
        ]
    )


def test_the_events_add_up_to_the_items() -> None:
    output, events = told([ReasoningPiece("a"), TextPiece("b"), TextPiece(" c"), CallStarted(0, "now"), CallEnded(0)])
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == output.items
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [item["id"] for item in added] == [item["id"] for item in done]
    assert {item["status"] for item in added} == {"in_progress"}


def test_a_call_without_its_end_is_incomplete() -> None:
    parts: list[Part] = [CallStarted(0, "now"), CallArguments(0, '{"zo')]
    for more, is_whole in (([], True), ([], False), ([TextPiece("and so on")], True)):
        output, _ = told([*parts, *more], is_whole=is_whole)
        assert (output.items[0]["arguments"], output.items[0]["status"]) == ('{"zo', "incomplete")


def test_an_answer_without_anything_is_an_empty_message() -> None:
    for parts, text in (([], ""), ([TextPiece(" \n")], " \n")):
        output, _ = told([*parts])
        assert [part["text"] for part in output.items[0]["content"]] == [text]
