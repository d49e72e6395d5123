"""What is asked, whichever API it is asked in, and the model of this process' host that it is asked of.

What a model gets is made here: tokens, and the form of the answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import ContextLengthError, ModelSourceError, NotFoundError, UnavailableError
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.sampling.settings import Constraint, ConstraintKind, SamplingDefaults

from moa_client.conversation.options import API_DEFAULTS, AnswerOptions
from moa_client.endpoint.fields import refused, refusing
from moa_client.host.catalog import Catalog, ListedModel
from moa_client.host.host import Host
from moa_client.host.surface_session import Watch
from moa_client.tools.answer_reader import AnswerReader, find_format
from moa_client.tools.formats import Harmony, ToolFormat, forced_grammar
from moa_client.tools.grammars import Reasoning, limited_grammar, reasoned_grammar
from moa_client.tools.template import ChatTemplate, prompt_tokens
from moa_client.tools.thinking import Thinking, effort_arguments, find_thinking, have_any
from moa_client.tools.tool import NO_TOOLS, ToolCall, ToolOffer, ToolResult, call_id
from moa_client.tools.turns import ChatMessage, TemplateInput, template_input
from moa_client.web.access import RequestError, request_error

Vectors = tuple[Sequence[Sequence[float]], dict[str, Any]]  # of some texts, and how they were made of tokens' states


class HostModel:
    """A model as requests ask it. `name`: in lists."""

    def __init__(self, host: Host, name: str) -> None:
        self._host = host
        self._target = host.device.target
        self.name = name
        self.context_tokens = self._target.context_tokens
        self.sampling = self._target.sampling
        self.vocab_size = int(self._target.files.config["vocab_size"])
        self.fingerprint = self._target.fingerprint  # of the target's weights and of the server's execution
        self.end_of_text = self._target.end_of_text

    @property
    def tokenizer(self) -> Tokenizer:
        return self._target.tokenizer

    def with_tools(self) -> HostModel:
        """The same with the chat template for conversations with tools."""
        other = copy(self)
        other._target = replace(self._target, tokenizer=self.tokenizer.with_tools())
        return other

    def spelled(self, tokens: Sequence[int]) -> str:
        """The text of some tokens with the special ones, but for those that end an answer."""
        return self._target.spelled(tokens)

    def render(self, given: TemplateInput) -> list[int]:
        """The tokens of a conversation up to where the answer begins."""
        template = ChatTemplate(self.tokenizer, context_tokens=self.context_tokens)
        return template.whole(given.messages, given.arguments, given.marks)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, with BOS before it where the model's files say so."""
        return self.tokenizer.with_bos(prompt_tokens(self.tokenizer, text, self.context_tokens))

    def begin(self, prompt: Sequence[int], options: AnswerOptions, traceparent: str) -> Watch:
        options.settings()  # refuses now what the conversation would refuse
        conversation = self._host.converse(is_read=False, lasts=False, for_program=True)
        watch = Watch(conversation, self._host.leave)
        conversation.task.ask_turn("", lambda _: prompt, options, traceparent=traceparent)
        return watch

    async def embed(self, texts: Sequence[Sequence[int]]) -> Vectors:
        host, hint = self._host, "Go online again, in the page or with /online in a chat."
        if host.is_offline:
            raise UnavailableError("You are offline, and only the server can embed texts.", hint=hint)
        answers = await host.link.call_best(host.device.identity, lambda server: server.embed(texts))
        made = {"pooling": pb.Pooling.Name(answers[0].pooling).lower(), "trained_for_embeddings": answers[0].trained}
        return [each.values for each in answers], made


class HostModels:
    """Where the daemon's answers come from."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def listed(self) -> Sequence[ListedModel]:
        return await self._catalog.listed()

    async def named(self, name: str) -> ListedModel:
        try:
            return await self._catalog.named(name)
        except NotFoundError as error:
            raise RequestError(404, str(error), param="model", code="model_not_found") from None

    async def loaded(self, name: str) -> HostModel:
        model = await self.named(name)
        return HostModel(await self._catalog.host(model), model.name)


END = 32  # tokens: enough to hold what opens reasoning


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a model is asked, and how it marks the parts of an answer to that.

    Args:
        constraint: the form of the answer; None: any.
        form: of calls; None: none are read.
        offer: the tools that it may call.
        thinking: marks reasoning; None: none is known.
        is_thinking: the prompt has opened reasoning.
    """

    tokens: list[int]
    constraint: Constraint | None = None
    form: ToolFormat | None = None
    offer: ToolOffer = NO_TOOLS
    thinking: Thinking | None = None
    is_thinking: bool = False

    def is_marked_by(self, special_tokens: Mapping[str, int]) -> bool:
        """Whether some of these tokens, which readers are not shown otherwise, are marks."""
        marks = () if self.form is None else self.form.marks
        return have_any(marks + (() if self.thinking is None else self.thinking.all), special_tokens)

    def reader(self) -> AnswerReader:
        return AnswerReader(self.thinking, self.form, self.offer.tools, is_open=self.is_thinking)


class Messages:
    """The messages of a request, as they become what templates are prepared for."""

    def __init__(self) -> None:
        self.made: list[ChatMessage | ToolResult] = []
        self._called: dict[str, str] = {}  # names by the ids of the calls so far
        self._open: dict[str, str] = {}  # of those without a result

    def call(self, path: str, id: str, name: str, arguments: str) -> ToolCall:
        id = id or call_id(path, 0)
        with refusing(path):
            call = ToolCall(id, name, arguments)
        self._called[id] = self._open[id] = name
        return call

    def add_result(self, param: str, call_id: str, content: str, tool: str = "") -> None:
        """Adds what came of a call, which the parameter names; without an id, of the first open one of that tool."""
        call_id = call_id or next((id for id, name in self._open.items() if tool in ("", name)), "")
        if call_id not in self._called:
            raise refused(param, f"nothing before it made the call {(call_id or tool)[:80]!r}")
        self._open.pop(call_id, None)
        self.made.append(ToolResult(call_id, self._called[call_id], content))


@dataclass(frozen=True, slots=True)
class AskedReasoning:
    """What is asked of the reasoning before an answer.

    Args:
        effort: one of `EFFORTS`; None: as the model has it.
        budget: the most tokens of it; None: any number.
        param, budget_param: of the request, which errors name.
    """

    effort: str | None = None
    budget: int | None = None
    param: str = "reasoning_effort"
    budget_param: str = "thinking_token_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAsk:
    """What is asked, whichever API it is asked in: the next message of a chat, or the continuation of a text.

    Args:
        options: how the answer is chosen; what they leave open is the model's, or else as in `defaults`.
        offer: the tools that the answer may call.
        text: or its tokens: to be continued, in place of messages; None: there are messages.
        unverified: what becomes of an answer that the server does not verify in time; None: as the daemon is set.
    """

    model: str
    stream: bool
    options: AnswerOptions
    defaults: SamplingDefaults = field(default_factory=lambda: API_DEFAULTS)
    messages: Sequence[ChatMessage | ToolResult] = ()
    offer: ToolOffer = NO_TOOLS
    reasoning: AskedReasoning = AskedReasoning()
    text: str | list[int] | None = None
    unverified: Literal["end", "fail"] | None = None

    def prompt(self, model: HostModel) -> Prompt:
        """What the model is asked. Takes a while."""
        for token, _ in self.options.logit_bias:
            if token >= model.vocab_size:
                raise refused("logit_bias", f"expected tokens 0 to {model.vocab_size - 1}, got {token}")
        prompt = self._chat_prompt(model) if self.text is None else self._text_prompt(model, self.text)
        if (length := len(prompt.tokens)) >= model.context_tokens:
            words = f"The prompt has {length} tokens, the context {model.context_tokens} in all."
            raise ContextLengthError(words, hint="Shorten the prompt.")
        return prompt

    def _text_prompt(self, model: HostModel, text: str | list[int]) -> Prompt:
        if isinstance(text, str):
            return Prompt(model.encode(text), constraint=self.options.constraint)
        if not all(0 <= token < model.vocab_size for token in text):
            raise refused("prompt", f"expected ids of tokens from 0 to {model.vocab_size - 1}")
        return Prompt(text, constraint=self.options.constraint)

    def _chat_prompt(self, model: HostModel) -> Prompt:
        offer, asked = self.offer, self.reasoning
        if offer.tools:
            model = model.with_tools()
        template, form = model.tokenizer.chat_template or "", self.options.constraint
        thinking, calls = find_thinking(template), find_format(template)
        given = template_input(calls, template, self.messages, offer.tools)
        with refusing(asked.param):
            given.arguments.update(effort_arguments(template, asked.effort))
        try:
            tokens = model.render(given)
        except ModelSourceError as error:
            raise request_error(error, param="messages") from None
        reasoning = None
        if thinking is not None:
            is_open, ends = thinking.is_open(model.spelled(tokens[-END:])), frozenset(model.end_of_text)
            reasoning = Reasoning(thinking, is_open, asked.budget, model.tokenizer.vocabulary.get, ends)
        has_calls = bool(offer.tools) or isinstance(calls, Harmony)  # which has all of an answer in messages
        is_open = reasoning is not None and reasoning.is_open
        if asked.effort == "none" and not is_open:
            reasoning = None  # the prompt has closed it
        with refusing(asked.budget_param):
            held = _constraint(calls, offer, model, reasoning, form)
        return Prompt(tokens, held, calls if has_calls else None, offer, thinking, is_open)


def _constraint(
    calls: ToolFormat, offer: ToolOffer, model: HostModel, reasoning: Reasoning | None, form: Constraint | None
) -> Constraint | None:
    """What the answer is held to; None: nothing."""
    if offer.is_forced or (offer.tools and form is not None):
        with refusing("tools"):
            grammar = forced_grammar(
                calls,
                offer.tools,
                model.tokenizer.special_tokens,
                is_parallel=offer.is_parallel,
                reasoning=reasoning,
                otherwise=None if form is None or offer.is_forced else json.loads(form.text or '{"type": "object"}'),
            )
    elif form is not None:
        if reasoning is None or (form.kind is ConstraintKind.LARK and not reasoning.is_open):
            return form
        with refusing("response_format"):
            grammar = reasoned_grammar(reasoning, form, model.tokenizer.special_tokens)
    elif reasoning is not None and reasoning.budget is not None:
        grammar = limited_grammar(reasoning, model.tokenizer.special_tokens)
    else:
        return None
    return Constraint(ConstraintKind.LARK, grammar)


def schema_form(schema: Mapping[str, Any]) -> Constraint:
    return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema, ensure_ascii=False))
