"""What the endpoint needs of the program that it is part of: the model, and conversations of one answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

from moa_shared.sampling.chances import TokenChances
from moa_shared.sampling.defaults import SamplingDefaults

from moa_client.conversation.answer_figures import LinkStatus
from moa_client.conversation.answer_options import AnswerOptions
from moa_client.conversation.answer_text import Update
from moa_client.tools.template_input import TemplateInput


class OneAnswer(Protocol):
    """A conversation of one question, as far as the endpoint needs it: a part of `OpenConversation`."""

    @property
    def status(self) -> LinkStatus:
        """The state of the link."""
        ...

    def updates(self) -> AsyncIterator[Update]:
        """What happens, from when it was asked on."""
        ...

    async def close(self) -> None:
        """Leaves the conversation; an answer that is not over ends, also at the server."""
        ...


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The vectors of some texts.

    Args:
        vectors: of any length.
        pooling: how each was made of its tokens' states.
        is_trained: the model was made for that.
    """

    vectors: Sequence[Sequence[float]]
    pooling: str
    is_trained: bool


class ServedModel(Protocol):
    """The server's model, as this device knows it."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes when the same request could get another text: of the weights, and of how they are computed with."""
        ...

    @property
    def context_tokens(self) -> int:
        """The most tokens that question and answer may have together."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids are below it."""
        ...

    @property
    def sampling(self) -> SamplingDefaults:
        """How its answers are sampled where a request does not say."""
        ...

    @property
    def chat_template(self) -> str:
        """Empty: it has none."""
        ...

    def with_tools(self) -> ServedModel:
        """The same with the chat template for conversations with tools."""
        ...

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """The ids of its special tokens by how they are spelled."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of some tokens, with all special ones."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """What one token adds to a text, in UTF-8."""
        ...

    @property
    def end_of_text(self) -> Set[int]:
        """The ids of tokens that end an answer."""
        ...

    def token_id(self, text: str) -> int | None:
        """The token that is spelled so; None: there is none."""
        ...

    def spelled(self, tokens: Sequence[int]) -> str:
        """The text of some tokens with the special ones that are in an answer, so without those that end one."""
        ...

    def render(self, given: TemplateInput) -> list[int]:
        """The tokens of a conversation up to where the answer begins.

        Raises:
            ModelSourceError: the model's chat template refuses them.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, as the model's texts begin."""
        ...

    async def score(
        self, tokens: Sequence[int], options: AnswerOptions, settle_seconds: float
    ) -> Sequence[TokenChances]:
        """How likely the model finds the tokens of a text, all but the first.

        Args:
            options: with what is wanted of their chances.
            settle_seconds: how long the server may be lost.

        Raises:
            MoaError: the server does not say it.
        """
        ...

    def begin(self, prompt: Sequence[int], options: AnswerOptions, traceparent: str) -> OneAnswer:
        """Asks for an answer, in a conversation that is not kept.

        Args:
            traceparent: of the program's span; empty: none.

        Raises:
            MoaError: it cannot be asked for.
        """
        ...

    async def embed(self, texts: Sequence[Sequence[int]], seconds: float) -> Embeddings:
        """The vectors of some texts.

        Args:
            texts: their tokens.
            seconds: how long the server may be lost.

        Raises:
            MoaError: they cannot be had.
        """
        ...


class AnswerSource(Protocol):
    """Where answers come from."""

    async def model(self) -> ServedModel:
        """The model, as it is now.

        Raises:
            MoaError: there is none yet.
        """
        ...
