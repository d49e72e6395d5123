"""A source of answers whose conversations do what a test says, and a program that serves it over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import takewhile
from typing import Any

import openai
from moa_client.conversation.answer_text import Update
from moa_client.conversation.events import (
    AnswerOutcome,
    Committed,
    Corrected,
    Ended,
    Failed,
    HeldBack,
    LinkChanged,
    LinkState,
    Provisional,
    Settled,
    SurfaceEvent,
)
from moa_client.conversation.figures import LinkStatus
from moa_client.conversation.options import AnswerOptions
from moa_client.endpoint.answer import Answer
from moa_client.endpoint.ask import HostModel, Prompt, Vectors
from moa_client.endpoint.endpoint import EndpointSettings
from moa_client.endpoint.routes import endpoint_routes
from moa_client.history.store import HistoryStore
from moa_client.settings import DEFAULT_MODEL
from moa_client.surface.conversation import Subscription
from moa_client.tools.turns import TemplateInput
from moa_client.web.access import Access, RequestError
from moa_client.web.server import WebServer, bind, make_app, serve
from moa_shared.errors import MoaError, ModelSourceError
from moa_shared.protocol.messages import Finish
from moa_shared.sampling.settings import SamplingDefaults, TokenChances

MODEL = "scripted/model"
Script = Callable[["ScriptedAnswer"], Awaitable[None]]


def spelling(token: int) -> str:
    """Of a token: a small letter; of one from 26 on nothing."""
    return chr(ord("a") + token) if token < 26 else ""


def chances_of(token: int, likeliest: int) -> TokenChances:
    """What is told of a token: the one after it is likelier."""
    first = tuple(range(token + 1, token + 1 + likeliest))
    return TokenChances(-float(token), first, tuple(-0.25 * (1 + rank) for rank in range(likeliest)))


def made_answer(prompt: Prompt | None = None, **more: Any) -> Answer:
    """An answer that has not begun; `more`: what differs."""
    fields = {"identifier": "1", "created": 0, "model": "tiny", "fingerprint": "fp", "seed": 5, "settle_seconds": 10.0}
    return Answer(**{"prompt": prompt or Prompt([]), "ends_unverified": False, **fields, **more})


class ScriptedAnswer:
    """One answer, which a test makes happen, in place of a conversation and of its `Watch`. A word is a token."""

    def __init__(self, prompt: Sequence[int], options: AnswerOptions) -> None:
        self.prompt = tuple(prompt)
        self.options = options
        self.conversation = self.engine = self
        self.closed = asyncio.Event()
        self.state = LinkState.GOOD
        self._written: list[str] = []
        self._updates = Subscription()
        self._script: asyncio.Future[None] | None = None

    @property
    def status(self) -> LinkStatus:
        return LinkStatus(self.state, 1.0, 0.0, 0.0, 0, 0)

    def updates(self) -> AsyncIterator[Update]:
        return self._updates.updates()

    async def close(self) -> None:
        if self._script is not None:
            self._script.cancel()
        self._updates.close()
        self.closed.set()

    def follow(self, script: Script) -> None:
        """Does what a script says."""
        self._script = asyncio.ensure_future(script(self))

    def commit_tokens(self, *tokens: int) -> None:
        """The server decides tokens, whose text is that of `ScriptedSource.decode`, and tells chances if asked."""
        wanted = self.options.chances
        chances = tuple(chances_of(token, wanted.likeliest) for token in tokens) if wanted is not None else ()
        self._tell(Committed(tokens, text="".join(map(spelling, tokens)), chances=chances))

    def commit(self, *words: str) -> None:
        """The server decides words; what was written and differs is withdrawn first."""
        same = (one == two for one, two in zip(words, self._written, strict=False))
        agreed = sum(takewhile(bool, same))
        self._written = self._written[agreed:]
        if agreed:
            self._tell(Committed(tuple(range(agreed)), agreed, "".join(words[:agreed])))
        if agreed < len(words):
            if self._written:
                dropped, self._written = len(self._written), []
                self._tell(Corrected(dropped))
            self._tell(Committed(tuple(range(agreed, len(words))), text="".join(words[agreed:])))

    def write(self, *words: str) -> None:
        """The device writes on."""
        self._written += words
        self._tell(Provisional(tuple(range(len(words))), added="".join(words)))

    def link(self, state: LinkState) -> None:
        self.state = state
        self._updates.push_update(Update(LinkChanged(state), status=self.status))

    def end(self, finish: Finish = Finish.END_OF_TEXT, *, provisional: bool = False) -> None:
        self._tell(Ended(finish, provisional))

    def settle(self, outcome: AnswerOutcome, finish: Finish = Finish.END_OF_TEXT) -> None:
        """The server has decided an answer that ended without it."""
        self._written = []
        self._tell(Settled((), outcome, finish))

    def fail(self, error: MoaError) -> None:
        self._tell(Failed(error))

    def hold_back(self) -> None:
        self._tell(HeldBack())

    def _tell(self, event: SurfaceEvent) -> None:
        self._updates.push_update(Update(event, 1, self.status))


def saying(*words: str, finish: Finish = Finish.END_OF_TEXT) -> Script:
    """Answers with these words, one after the other."""

    async def script(answer: ScriptedAnswer) -> None:
        for word in words:
            answer.commit(word)
            await asyncio.sleep(0)
        answer.end(finish)

    return script


async def silence(answer: ScriptedAnswer) -> None:
    """Leaves all to the test."""


class ScriptedSource(HostModel):
    """A model whose answers are scripted, and the source of it. `script`: what each answer does."""

    name = MODEL
    fingerprint = "fp_scripted"
    key = (b"weights", b"tokenizer")
    context_tokens = 100
    vocab_size = 1000
    sampling: SamplingDefaults = {}  # noqa: RUF012
    chat_template = "{{ message.content }}"
    special_tokens: Mapping[str, int] = {}
    vocabulary = property(lambda self: self.special_tokens)
    end_of_text: frozenset[int] = frozenset()

    @property
    def tokenizer(self) -> Any:
        return self

    def with_tools(self) -> ScriptedSource:
        return self

    def __init__(self, script: Script = silence) -> None:
        self.script = script
        self.answers: list[ScriptedAnswer] = []
        self.traceparents: list[str] = []
        self.rendered: list[dict[str, Any]] = []
        self.absent: MoaError | None = None
        self._begun = asyncio.Event()

    async def models(self) -> Any:
        """Itself: it is all models that there are."""
        if self.absent is not None:
            raise self.absent
        return self

    async def listed(self) -> Sequence[Any]:
        return [self]

    async def named(self, name: str) -> ScriptedSource:
        if name not in (MODEL, DEFAULT_MODEL):
            raise RequestError(404, f"There is no model {name!r} here.", param="model", code="model_not_found")
        return self

    loaded = named

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(spelling, tokens))

    def token_bytes(self, token: int) -> bytes:
        return spelling(token).encode()

    def spelled(self, tokens: Sequence[int]) -> str:
        return ""

    def render(self, given: TemplateInput) -> list[int]:
        self.rendered = messages = given.messages
        if any(message["content"] == "REFUSE" for message in messages):
            raise ModelSourceError("The template refuses it.", hint="Send something else.")
        return [number for message in messages for number, _ in enumerate(message["content"].split())]

    def encode(self, text: str) -> list[int]:
        return list(range(len(text.split())))

    def begin(  # type: ignore[override]
        self, prompt: Sequence[int], options: AnswerOptions, traceparent: str
    ) -> ScriptedAnswer:
        self.traceparents.append(traceparent)
        answer = ScriptedAnswer(prompt, options)
        self.answers.append(answer)
        answer.follow(self.script)
        self._begun.set()
        return answer

    async def embed(self, texts: Sequence[Sequence[int]]) -> Vectors:
        return [[3.0 * len(tokens), 4.0 * len(tokens)] for tokens in texts], {"pooling": "mean"}

    async def answer(self, number: int = 1) -> ScriptedAnswer:
        """The answer of this number, once it was asked for."""
        while len(self.answers) < number:
            self._begun.clear()
            await self._begun.wait()
        return self.answers[number - 1]


@asynccontextmanager
async def serving(
    source: ScriptedSource,
    settings: EndpointSettings | None = None,
    origins: tuple[str, ...] = (),
    key: str = "",
    history: HistoryStore | None = None,
) -> AsyncIterator[WebServer]:
    """The endpoint on a port of its own."""
    listener, closing = bind("127.0.0.1", 0), asyncio.Event()
    access = Access("127.0.0.1", listener.getsockname()[1], origins, key)
    routes = endpoint_routes(source.models, settings or EndpointSettings(), closing, lambda: history)
    app = make_app(routes, access)
    server = await serve(app, listener, closing, access)
    try:
        yield server
    finally:
        await server.close()


def openai_client(url: str, key: str = "none") -> openai.AsyncOpenAI:
    """Without the authorities' certificates, which take 20 ms to read and which no endpoint without TLS needs."""
    http_client = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=http_client)
