"""Several answers as OpenAI's API has them: `choices` of one object, or of one stream's chunks. Pure.

State: which of them have ended in the stream.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from moa_client.endpoint.asked import Fields
from moa_client.endpoint.openai.forms import OpenAiForm
from moa_client.endpoint.progress import ChoicesProgress
from moa_client.web.error_form import RequestError


class OpenAiChoicesForm:
    """Several answers in one response; implements `ChoicesForm`.

    Args:
        forms: of each answer, in order.
    """

    def __init__(self, forms: Sequence[OpenAiForm]) -> None:
        self._forms = forms
        self._ended: set[int] = set()
        self.media_type = forms[0].media_type
        self.keep_alive = forms[0].keep_alive

    def whole(self, progress: ChoicesProgress) -> Fields:
        """All answers, once they are over."""
        each = zip(self._forms, progress.answers, strict=True)
        choices = [{**form.choice(answer), "moa": form.moa(answer)} for form, answer in each]
        is_verified = all(answer.is_verified for answer in progress.answers)
        return {**self._forms[0].completion(choices, progress.answers), "moa": {"verified": is_verified}}

    def first(self) -> bytes:
        """Begins a stream."""
        return b"".join(form.first() for form in self._forms)

    def next(self, progress: ChoicesProgress) -> bytes:
        """What is new; empty: nothing."""
        body = b""
        for index, (form, answer) in enumerate(zip(self._forms, progress.answers, strict=True)):
            body += form.next(answer)
            if answer.reason is not None and index not in self._ended:
                self._ended.add(index)
                body += form.end(answer)
        return body

    def last(self, progress: ChoicesProgress) -> bytes:
        """Ends a stream whose answers are over."""
        return self._forms[0].close(progress.answers)

    def failed(self, error: RequestError) -> bytes:
        """Ends a stream of which an answer has failed."""
        return self._forms[0].failed(error)

    def refusal(self, error: RequestError) -> Response:
        """The response where an answer has failed before anything was sent."""
        return error.response()
