"""The JSON object that a response is, and the events of its stream. Pure but for the keeping of it.

What only this endpoint has is in the field `moa`, which clients that do not know it leave alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.responses import Response

from moa_client.endpoint.answer_parts import AnswerParts, Part
from moa_client.endpoint.asked import AnswerHeader, Fields
from moa_client.endpoint.events import EVENT_STREAM, KEEP_ALIVE, event
from moa_client.endpoint.openai.forms import verification
from moa_client.endpoint.progress import AnswerProgress
from moa_client.endpoint.responses.output import OutputItems
from moa_client.endpoint.responses.requests import ResponseRequest
from moa_client.tools.reading.pieces import TextPiece
from moa_client.tools.tool import ChoiceMode, ToolChoice
from moa_client.web.error_form import RequestError

PREFIX = "resp_"
FAILURES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}  # OpenAI's codes by status; otherwise:
FAILURE = "server_error"


class ResponseForm:
    """A response; implements `AnswerForm`.

    State: what its stream has sent.

    Args:
        parts: of the answer; None: its text is sent as it is.
        keep: keeps the response when it is over; whether it was kept.
        is_kept: whether it is to be.
    """

    media_type = EVENT_STREAM
    keep_alive = KEEP_ALIVE

    def __init__(
        self,
        header: AnswerHeader,
        parts: AnswerParts | None,
        request: ResponseRequest,
        keep: Callable[[Fields], bool],
        *,
        is_kept: bool,
    ) -> None:
        self._header = header
        self._parts = parts
        self._request = request
        self._keep = keep
        self._is_kept = is_kept
        self._output = OutputItems(header.identifier, [] if parts is None else parts.calls)
        self._sent = 0  # characters of committed text
        self._events = 2  # those of the beginning have the first two numbers

    def whole(self, progress: AnswerProgress) -> Fields:
        """An answer that is over."""
        self._take(progress.text.committed + progress.text.provisional)
        self._finish(progress)
        return self._ended(progress)

    def first(self) -> bytes:
        """Begins a stream."""
        response = self._fields("in_progress", [])
        kinds = ("response.created", "response.in_progress")
        return b"".join(
            event({"type": kind, "sequence_number": number, "response": response}, kind)
            for number, kind in enumerate(kinds)
        )

    def next(self, progress: AnswerProgress) -> bytes:
        """What is new; empty: nothing that this stream has."""
        committed = progress.text.committed
        piece, self._sent = committed[self._sent :], len(committed)
        return self._sent_as(self._take(piece))

    def last(self, progress: AnswerProgress) -> bytes:
        """Ends a stream: with its unverified text, if that is how it ends."""
        rest = [*self._take(progress.text.provisional), *self._finish(progress)]
        response = self._ended(progress)
        return self._sent_as([*rest, {"type": f"response.{response['status']}", "response": response}])

    def failed(self, error: RequestError) -> bytes:
        """Ends a stream whose answer has failed."""
        failure = {"code": FAILURES.get(error.status, FAILURE), "message": str(error), "param": error.param}
        rest = self._output.finish(is_whole=False) if self._output.items else []
        response = {**self._fields("failed", self._output.items), "error": failure, "store": False}
        return self._sent_as([*rest, {"type": "response.failed", "response": response}])

    def refusal(self, error: RequestError) -> Response:
        """The response where the answer has failed before anything was sent."""
        return error.response()

    # ------------------------------------------------------------ inside

    def _take(self, text: str) -> list[Fields]:
        """Reads more of the answer's text; the events of it."""
        if not text:
            return []
        parts: Sequence[Part] = [TextPiece(text)] if self._parts is None else self._parts.push(text)
        return [event for part in parts for event in self._output.take(part)]

    def _finish(self, progress: AnswerProgress) -> list[Fields]:
        parts = [] if self._parts is None else self._parts.finish()
        events = [event for part in parts for event in self._output.take(part)]
        return [*events, *self._output.finish(is_whole=self._is_whole(progress))]

    def _is_whole(self, progress: AnswerProgress) -> bool:
        reason = progress.reason or ""
        return (reason if self._parts is None else self._parts.reason(reason)) != "length"

    def _ended(self, progress: AnswerProgress) -> Fields:
        """The response that is over, once it is kept."""
        is_whole = self._is_whole(progress)
        fields = self._fields("completed" if is_whole else "incomplete", self._output.items)
        fields |= {
            "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
            "usage": self._usage(progress),
            "moa": {"seed": self._header.seed, **verification(progress, len(progress.text.committed))},
        }
        if self._is_kept:
            fields["store"] = self._keep(fields)
        return fields

    def _fields(self, status: str, output: Sequence[Fields]) -> Fields:
        header, request = self._header, self._request
        wanted = request.text.format.model_dump(by_alias=True, exclude_none=True)
        return {
            "id": PREFIX + header.identifier,
            "object": "response",
            "created_at": header.created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata,
            "model": header.model,
            "output": output,
            "parallel_tool_calls": request.parallel_tool_calls,
            "previous_response_id": request.previous_response_id,
            "reasoning": {"effort": request.reasoning.effort, "summary": None},
            "service_tier": "default",
            "store": self._is_kept,
            "temperature": request.temperature,
            "text": {"format": wanted, "verbosity": "medium"},
            "tool_choice": _choice_fields(request.tool_choice),
            "tools": [tool.model_dump() for tool in request.tools],
            "top_logprobs": 0,
            "top_p": request.top_p,
            "truncation": "disabled",
            "usage": None,
            "moa": {"seed": header.seed},
        }

    def _usage(self, progress: AnswerProgress) -> Fields:
        """How many tokens there were; which of them were cached is not counted."""
        asked, answered = self._header.prompt_tokens, progress.completion_tokens
        return {
            "input_tokens": asked,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": answered,
            "output_tokens_details": {"reasoning_tokens": progress.reasoning_tokens or 0},
            "total_tokens": asked + answered,
        }

    def _sent_as(self, events: Sequence[Fields]) -> bytes:
        """The events of a stream, each with its number."""
        body = b""
        for fields in events:
            kind: Any = fields["type"]
            body += event({"type": kind, "sequence_number": self._events, **fields}, kind)
            self._events += 1
        return body


def _choice_fields(choice: ToolChoice) -> str | Fields:
    return {"type": "function", "name": choice.name} if choice.mode is ChoiceMode.NAMED else choice.mode.value
