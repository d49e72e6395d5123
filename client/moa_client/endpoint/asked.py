"""What the endpoint needs of a request and of the form of its answer, whichever API they are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from moa_shared.sampling.constraint import Constraint
from moa_shared.sampling.defaults import SamplingDefaults
from starlette.responses import Response

from moa_client.conversation.answer_options import AnswerOptions
from moa_client.endpoint.answer_parts import AnswerMarkup, AnswerParts
from moa_client.endpoint.answer_source import ServedModel
from moa_client.endpoint.progress import AnswerProgress
from moa_client.web.error_form import RequestError

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked.

    Args:
        markup: of the answer; None: its text is sent as it is.
        constraint: the form of an answer that must be a call.
        text: that the tokens are of; empty: the request has given the tokens.
        is_repeated: the answer begins with the prompt, with the chances of its tokens where chances are wanted.
        is_answered: False: nothing follows it.
    """

    tokens: list[int]
    markup: AnswerMarkup | None = None
    constraint: Constraint | None = None
    text: str = ""
    is_repeated: bool = False
    is_answered: bool = True


@dataclass(frozen=True, slots=True)
class AnswerHeader:
    """What is known of an answer before it begins.

    Args:
        identifier: of the answer, without a prefix; `created`: in seconds since 1970.
        fingerprint: of the model and how it is computed with.
        prompt_tokens: of the request; `seed`: of the answer.
    """

    identifier: str
    created: int
    model: str
    fingerprint: str
    prompt_tokens: int
    seed: int


class AnswerForm(Protocol):
    """Sends one answer as its API has it: whole, or as a stream."""

    @property
    def media_type(self) -> str:
        """Of the stream."""
        ...

    @property
    def keep_alive(self) -> bytes:
        """What a stream with nothing to say sends, which clients skip."""
        ...

    def whole(self, progress: AnswerProgress) -> Fields:
        """An answer that is over."""
        ...

    def first(self) -> bytes:
        """Begins a stream."""
        ...

    def next(self, progress: AnswerProgress) -> bytes:
        """What is new; empty: nothing that this stream has."""
        ...

    def last(self, progress: AnswerProgress) -> bytes:
        """Ends a stream whose answer is over."""
        ...

    def failed(self, error: RequestError) -> bytes:
        """Ends a stream whose answer has failed."""
        ...

    def refusal(self, error: RequestError) -> Response:
        """The response where the answer has failed before anything was sent."""
        ...


class Asked(Protocol):
    """A request for an answer."""

    @property
    def model(self) -> str:
        """The name of the model that it asks for."""
        ...

    @property
    def stream(self) -> bool:
        """Whether the answer is to be sent as it comes."""
        ...

    @property
    def unverified(self) -> Literal["end", "fail"] | None:
        """What becomes of an answer that the server does not verify in time; None: as the daemon is set."""
        ...

    def prompt(self, model: ServedModel) -> Prompt:
        """What the model is asked. Takes a while.

        Raises:
            RequestError: the model cannot be asked this.
        """
        ...

    def options(self, defaults: SamplingDefaults, vocab_size: int) -> AnswerOptions:
        """The options of the answer; nothing of them is open.

        Args:
            defaults: the model's.
            vocab_size: its token ids are below it.

        Raises:
            RequestError: a value outside its range.
        """
        ...

    def form(self, header: AnswerHeader, parts: AnswerParts | None) -> AnswerForm:
        """How the answer is sent.

        Args:
            parts: of the answer; None: its text is sent as it is.
        """
        ...
