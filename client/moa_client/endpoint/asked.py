"""What the endpoint needs of a request and of the form of its answer, whichever API they are of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from moa_shared.errors import MoaError
from moa_shared.sampling.constraint import Constraint
from moa_shared.sampling.defaults import SamplingDefaults
from starlette.responses import Response

from moa_client.conversation.answer_options import AnswerOptions
from moa_client.endpoint.answer_parts import AnswerMarkup, AnswerParts
from moa_client.endpoint.answer_source import ServedModel
from moa_client.endpoint.progress import AnswerProgress, ChoicesProgress
from moa_client.web.error_form import RequestError

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked.

    Args:
        markup: of the answer; None: its text is sent as it is.
        constraint: the form of an answer that must be a call, or a call or else JSON.
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


class Progress(Protocol):
    """How far something that a request asked for is."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        ...

    @property
    def failure(self) -> MoaError | None:
        """Why it has failed; None: it has not."""
        ...


AnyProgress = TypeVar("AnyProgress", bound=Progress)
ShownProgress = TypeVar("ShownProgress", bound=Progress, contravariant=True)


class Form(Protocol[ShownProgress]):
    """Sends what a request asked for as its API has it: whole, or as a stream."""

    @property
    def media_type(self) -> str:
        """Of the stream."""
        ...

    @property
    def keep_alive(self) -> bytes:
        """What a stream with nothing to say sends, which clients skip."""
        ...

    def whole(self, progress: ShownProgress) -> Fields:
        """An answer that is over."""
        ...

    def first(self) -> bytes:
        """Begins a stream."""
        ...

    def next(self, progress: ShownProgress) -> bytes:
        """What is new; empty: nothing that this stream has."""
        ...

    def last(self, progress: ShownProgress) -> bytes:
        """Ends a stream whose answer is over."""
        ...

    def failed(self, error: RequestError) -> bytes:
        """Ends a stream whose answer has failed."""
        ...

    def refusal(self, error: RequestError) -> Response:
        """The response where the answer has failed before anything was sent."""
        ...


AnswerForm: TypeAlias = Form[AnswerProgress]  # of one answer
ChoicesForm: TypeAlias = Form[ChoicesProgress]  # of several answers


class AskedAnswer(Protocol):
    """A request for an answer, or for several."""

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


class Asked(AskedAnswer, Protocol):
    """A request for one answer."""

    def prompt(self, model: ServedModel) -> Prompt:
        """What the model is asked. Takes a while.

        Raises:
            RequestError: the model cannot be asked this.
        """
        ...


class AskedChoices(AskedAnswer, Protocol):
    """A request that may ask several questions, and for several answers to each."""

    @property
    def n(self) -> int:
        """How many answers to each question."""
        ...

    def prompts(self, model: ServedModel) -> Sequence[Prompt]:
        """What the model is asked; at least one question. Takes a while.

        Raises:
            RequestError: the model cannot be asked this.
        """
        ...

    def choices_form(self, headers: Sequence[AnswerHeader], parts: Sequence[AnswerParts | None]) -> ChoicesForm:
        """How several answers are sent.

        Args:
            headers, parts: of each answer, as for `form`; those to one question follow one another.
        """
        ...
