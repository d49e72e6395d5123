"""The items of a response's output as the parts of its answer come, and the events that tell of them. Pure.

State: the items so far, of which the last one may be open. Invariant: the events of a stream add up to the items.
"""

from __future__ import annotations

from moa_client.endpoint.answer_parts import Call, Part
from moa_client.endpoint.asked import Fields
from moa_client.tools.reading.pieces import CallArguments, CallEnded, CallStarted, TextPiece
from moa_client.tools.thinking import ReasoningPiece

MESSAGE, REASONING, CALL = "message", "reasoning", "function_call"
_PREFIXES = {MESSAGE: "msg", REASONING: "rs", CALL: "fc"}
_TEXT_EVENTS = {MESSAGE: "response.output_text", REASONING: "response.reasoning_text"}


class OutputItems:
    """The output of one response.

    Args:
        identifier: of the answer: the ids of the items begin with it.
        calls: of the answer, as they are read.
    """

    def __init__(self, identifier: str, calls: list[Call]) -> None:
        self.items: list[Fields] = []
        self._identifier = identifier
        self._calls = calls
        self._open = ""  # the type of the last item, while it is open
        self._text = ""  # of the last item: its text or its arguments
        self._space = ""  # held until something follows it: white space alone makes no message

    def take(self, part: Part) -> list[Fields]:
        """Adds a part of the answer; the events of it."""
        match part:
            case ReasoningPiece(text):
                return [*self._begin_text(REASONING), self._delta(text)]
            case TextPiece(text):
                if self._open != MESSAGE and not text.strip():
                    self._space += text
                    return []
                text, self._space = self._space + text, ""
                return [*self._begin_text(MESSAGE), self._delta(text)]
            case CallStarted(index, name):
                call = {"call_id": self._calls[index].id, "name": name, "arguments": ""}
                return [*self._leave(), self._begin(CALL, call)]
            case CallArguments(text=text):
                return [self._delta(text)]
            case CallEnded():
                return self._end("completed")

    def finish(self, *, is_whole: bool) -> list[Fields]:
        """Ends the output; the rest of its events. An answer without anything is an empty message.

        Args:
            is_whole: the answer has come to its end.
        """
        events = []
        if not self.items:
            events += self._begin_text(MESSAGE)
            events += [self._delta(self._space)] if self._space else []
        return [*events, *(self._leave() if is_whole else self._end("incomplete"))]

    def _leave(self) -> list[Fields]:
        """Ends the item that others follow; a call that has not come to its own end never will."""
        return self._end("incomplete" if self._open == CALL else "completed")

    def _end(self, status: str) -> list[Fields]:
        """Ends the open item, if there is one; the events of it."""
        if not self._open:
            return []
        item, place = self.items[-1], self._place()
        item["status"] = status
        if self._open == CALL:
            item["arguments"] = self._text
            done = {"type": "response.function_call_arguments.done", **place, "name": item["name"]}
            events = [{**done, "arguments": self._text}]
        else:
            part = _part(self._open, self._text)
            item["content"] = [part]
            done = {"type": f"{_TEXT_EVENTS[self._open]}.done", **place, "content_index": 0, "text": self._text}
            events = [
                {**done, **_chances(self._open)},
                {"type": "response.content_part.done", **place, "content_index": 0, "part": part},
            ]
        self._open = self._text = ""
        index = len(self.items) - 1
        return [*events, {"type": "response.output_item.done", "output_index": index, "item": dict(item)}]

    def _begin_text(self, kind: str) -> list[Fields]:
        """Begins an item with text, unless it is open."""
        if self._open == kind:
            return []
        fields = {"role": "assistant", "content": []} if kind == MESSAGE else {"summary": [], "content": []}
        events = [*self._leave(), self._begin(kind, fields)]
        part = {"type": "response.content_part.added", **self._place(), "content_index": 0, "part": _part(kind, "")}
        return [*events, part]

    def _begin(self, kind: str, fields: Fields) -> Fields:
        index = len(self.items)
        item = {
            "id": f"{_PREFIXES[kind]}_{self._identifier}{index:02}",
            "type": kind,
            "status": "in_progress",
            **fields,
        }
        self.items.append(item)
        self._open = kind
        return {"type": "response.output_item.added", "output_index": index, "item": dict(item)}

    def _delta(self, text: str) -> Fields:
        self._text += text
        if self._open == CALL:
            return {"type": "response.function_call_arguments.delta", **self._place(), "delta": text}
        kind = f"{_TEXT_EVENTS[self._open]}.delta"
        return {"type": kind, **self._place(), "content_index": 0, "delta": text, **_chances(self._open)}

    def _place(self) -> Fields:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}


def _part(kind: str, text: str) -> Fields:
    if kind == REASONING:
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _chances(kind: str) -> Fields:
    """The log probabilities that an event of text has room for."""
    return {"logprobs": []} if kind == MESSAGE else {}
