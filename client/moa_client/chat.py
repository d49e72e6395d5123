"""The chat: questions in, answers out, on a terminal or a pipe.

State: the talk and what the user has set. On a pipe the answer alone goes to standard output; figures and remarks go
to standard error.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

from moa_shared.answer import Finish
from moa_shared.codec import Codec
from moa_shared.config import load_settings
from moa_shared.errors import CancelledAnswerError, ConfigError, DataError, MoaError
from moa_shared.progress import make_progress
from moa_shared.template import ChatTemplate

from moa_client.answering import answer
from moa_client.link import Link, connect
from moa_client.loading import Device, load_device
from moa_client.settings import SECTION, ClientSettings
from moa_client.sources import find_sources
from moa_client.talk import Talk

HELP = """\
/help               this list
/reset              start a new conversation
/set                show what can be set
/set NAME VALUE     set it for the next answers (temperature, top_k, top_p, seed, max_tokens, stop, system)
/stats              figures of the last answer
/bye                leave (also Ctrl-D)
Ctrl-C stops an answer; a second one does not wait for the server. A line that ends with \\ goes on in the next one;
three double quotes begin and end a block; Alt-Enter makes a new line."""
SETTABLE = ("temperature", "top_k", "top_p", "seed", "max_tokens", "stop", "system")


class Chat:
    """A conversation with a person.

    Args:
        settings: as started; /set changes a copy.
        device: what this client holds.
        talk: to the server.
        out, err: where text and remarks go.
    """

    def __init__(
        self,
        settings: ClientSettings,
        device: Device,
        talk: Talk,
        out: Callable[[str], None],
        err: Callable[[str], None],
    ) -> None:
        self.settings = settings
        self.device = device
        self.talk = talk
        self._out = out
        self._err = err
        self._template = ChatTemplate(device.tokenizer, settings.system)

    async def ask(self, question: str) -> bool:
        """One question; False if its answer was stopped.

        Raises:
            MoaError: why there is no (more) answer.
        """
        try:
            finished = await answer(self.talk, self.device, self._template, question, self.settings.answer, self._out)
        finally:
            self._out("\n")
        finish = self.talk.figures.finish
        if finish is Finish.MAX_TOKENS:
            self._err(f"(cut after {self.settings.max_tokens} tokens: max_tokens)")
        elif finish is Finish.CONTEXT:
            self._err("(the context is full: /reset starts a new conversation)")
        return finished

    async def on_line(self, line: str) -> bool:
        """A line from the user: a question or a command; False to leave."""
        if not line.strip():
            return True
        if not line.startswith("/"):
            try:
                if not await self.ask(line):
                    self._err("(stopped)")
            except MoaError as error:
                self._err(f"Error: {error}")
            return True
        name, *values = line[1:].split(maxsplit=2) or [""]
        if name == "bye":
            return False
        if name == "help":
            self._err(HELP)
        elif name == "reset":
            self.talk.reset()
            self._err("A new conversation begins.")
        elif name == "stats":
            self._err(self.talk.figures.line())
        elif name == "set":
            self._set(values)
        else:
            self._err(f"There is no command /{name}. /help lists them.")
        return True

    def _set(self, values: list[str]) -> None:
        if len(values) < 2:
            self._err("\n".join(f"{name} {getattr(self.settings, name)}" for name in SETTABLE))
            return
        name, value = values
        if name not in SETTABLE:
            self._err(f"{name} cannot be set here. What can: {', '.join(SETTABLE)}.")
            return
        try:
            changed = self.settings.model_dump() | {name: (value,) if name == "stop" else value}
            self.settings = load_settings(ClientSettings, SECTION, changed, environment={})
        except ConfigError as error:
            self._err(f"Error: {error}")
            return
        if name == "system":
            self._template = ChatTemplate(self.device.tokenizer, value)
            self.talk.reset()
            self._err("A new conversation begins, with this system prompt.")
        else:
            self._err(f"{name} is {getattr(self.settings, name)} now.")


def write(text: str) -> None:
    """Text to standard output, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def remark(text: str) -> None:
    """A line to standard error."""
    print(text, file=sys.stderr, flush=True)


async def run(settings: ClientSettings, prompt: str | None) -> None:
    """The whole program: connect, load, then one answer (`prompt`, or standard input that is no terminal) or a chat.

    Raises:
        MoaError: why it cannot go on.
    """
    question = _read_question(prompt)
    async with AsyncExitStack() as stack:
        link = await stack.enter_async_context(
            connect(settings.server, settings.connect_seconds, settings.silence_seconds)
        )
        chat = await _begin(settings, link)
        stack.push_async_callback(chat.talk.close)
        if question is not None:
            finished = await chat.ask(question)
            remark(chat.talk.figures.line())
            if not finished:
                raise CancelledAnswerError("The answer was stopped.")
        else:
            from moa_client.terminal import converse

            await converse(chat)


def _read_question(prompt: str | None) -> str | None:
    """The prompt given, or standard input if that is no terminal; None for a chat."""
    question = prompt
    try:
        if question is None and not sys.stdin.isatty():
            question = sys.stdin.read()
        if question is not None:
            question.encode()  # an argument that is no UTF-8 arrives as surrogates
    except UnicodeError:
        raise DataError("The prompt is not text in UTF-8.", hint="Convert it first, for example with iconv.") from None
    if question is not None and not question.strip():
        raise ConfigError("The prompt is empty.", hint="Give a prompt as an argument or on standard input.")
    return question


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C ends the program at once: loading does not return to the event loop, which would see to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


async def _begin(settings: ClientSettings, link: Link) -> Chat:
    """Describe, load and check; imports torch as late as here."""
    served = await link.describe()
    progress = make_progress()
    sources = await find_sources(settings, link, served, progress)
    with _interruptible():
        device = load_device(settings, served, progress, sources)
    vocab_size = int(device.files.config["vocab_size"])
    talk = Talk(link, device, vocab_size, Codec[settings.codec.upper()])
    return Chat(settings, device, talk, write, remark)
