"""The host of this process as the source of answers: its model, and conversations of one question."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import UnavailableError
from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.text.template import ChatTemplate, prompt_tokens

from moa_client.conversation.answer_options import AnswerOptions
from moa_client.host.host import Host
from moa_client.host.library import LocalConversation
from moa_client.link.calls import call_best, embed
from moa_client.tools.turns import TemplateInput


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


class HostModel:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._device = host.device
        self.name = self._device.files.target_id
        self.context_tokens = self._device.context_tokens
        self.sampling = self._device.sampling
        self.vocab_size = int(self._device.files.config["vocab_size"])
        self.fingerprint = self._device.fingerprint  # of the target's weights and of the server's execution
        self.end_of_text = self._device.end_of_text

    @property
    def tokenizer(self) -> Tokenizer:
        return self._device.tokenizer

    def with_tools(self) -> HostModel:
        """The same with the chat template for conversations with tools."""
        other = copy(self)
        other._device = replace(self._device, tokenizer=self.tokenizer.with_tools())
        return other

    def spelled(self, tokens: Sequence[int]) -> str:
        """The text of some tokens with the special ones, but for those that end an answer."""
        return self._device.spelled(tokens)

    def render(self, given: TemplateInput) -> list[int]:
        """The tokens of a conversation up to where the answer begins."""
        template = ChatTemplate(self.tokenizer, context_tokens=self.context_tokens)
        return template.whole(given.messages, given.arguments, given.marks)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, with BOS before it where the model's files say so."""
        return self.tokenizer.with_bos(prompt_tokens(self.tokenizer, text, self.context_tokens))

    def begin(self, prompt: Sequence[int], options: AnswerOptions, traceparent: str) -> LocalConversation:
        options.settings()  # refuses now what the conversation would refuse
        conversation = self._host.converse(is_read=False, lasts=False, is_timed=True, spells_marks=False)
        local = LocalConversation(conversation, self._host.leave)
        conversation.ask_turn("", lambda _: prompt, options, traceparent=traceparent)
        return local

    async def embed(self, texts: Sequence[Sequence[int]], seconds: float) -> Embeddings:
        if self._host.is_offline:
            hint = "Go online again, in the page or with /online in a chat."
            raise UnavailableError("You are offline, and only the server can embed texts.", hint=hint)
        answers = await call_best(self._host.link, self._device.identity, lambda server: embed(server, texts), seconds)
        first = answers[0]
        return Embeddings([each.values for each in answers], pb.Pooling.Name(first.pooling).lower(), first.trained)


def model_source(host: Callable[[], Awaitable[Host]]) -> Callable[[], Awaitable[HostModel]]:
    """Where the daemon's answers come from; `host`: gives the host, once there is one."""

    async def model() -> HostModel:
        return HostModel(await host())

    return model
