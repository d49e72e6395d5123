"""The chat: questions in, answers out, on a terminal or a pipe.

State: the talk and what the user has set. On a pipe the answer alone goes to standard output; figures and remarks go
to standard error.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager

from moa_shared.answer import Finish
from moa_shared.codec import Codec
from moa_shared.config import load_settings
from moa_shared.errors import CancelledAnswerError, ConfigError, DataError, MoaError, NotFoundError, UnavailableError
from moa_shared.progress import make_progress
from moa_shared.template import ChatTemplate

from moa_client.answering import answer
from moa_client.events import Event, LinkChanged, LinkState, Settled
from moa_client.json_events import error_line, event_line, ready_line
from moa_client.link import Link, connect
from moa_client.loading import Device, load_device
from moa_client.settings import SECTION, ClientSettings
from moa_client.sources import Sources, find_local_sources, find_sources
from moa_client.status import status_line
from moa_client.talk import Talk, TalkSettings
from moa_client.transcript import Transcript
from moa_client.views import link_words, make_view

HELP = """\
/help               this list
/reset              start a new conversation
/set                show what can be set
/set NAME VALUE     set it for the next answers (temperature, top_k, top_p, seed, max_tokens, stop, system)
/status             how the link is
/offline, /online   go on without the server, and with it again
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
        template = self._template

        def turn(before: Sequence[int]) -> Sequence[int]:
            return template.next_turn(question, before) if before else template.first_turn(question)

        transcript = Transcript(self._decode, self.settings.stop)
        view = make_view(self.talk, self._out, self._err, json_events=self.settings.json_events)
        finished = await answer(self.talk, turn, self.settings.answer, transcript, view)
        finish = self.talk.figures.finish
        if finish is Finish.MAX_TOKENS:
            self._err(f"(cut after {self.settings.max_tokens} tokens: max_tokens)")
        elif finish is Finish.CONTEXT:
            self._err("(the context is full: /reset starts a new conversation)")
        return finished

    async def attend(self) -> AsyncGenerator[None, None]:
        """Looks after the link between questions and tells what happens; yields whenever something has."""
        try:
            async with aclosing(self.talk.attend()) as events:
                async for event in events:
                    self._tell(event)
                    yield
        except MoaError as error:
            self._fail(error)
            yield

    @property
    def status(self) -> str:
        """The status line."""
        return status_line(self.talk.status, self.talk.unsettled)

    def _tell(self, event: Event) -> None:
        """What happens between questions."""
        text = self._decode(event.tokens) if isinstance(event, Settled) else ""
        if self.settings.json_events:
            self._out(event_line(event, text, "", self.talk.figures) + "\n")
        elif isinstance(event, Settled) and event.changed:
            self._err(f"(The server has corrected an answer that ended without it. It reads:)\n{text}")
        elif isinstance(event, Settled):
            self._err("(The server has verified the answer that ended without it.)")
        elif isinstance(event, LinkChanged) and (words := link_words(event)):
            self._err(words)

    def _fail(self, error: MoaError) -> None:
        if self.settings.json_events:
            self._out(error_line(error) + "\n")
        self._err(f"Error: {error}")

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self.device.tokenizer.decode(tokens, skip_special_tokens=True)
        return text

    async def on_line(self, line: str) -> bool:
        """A line from the user: a question or a command; False to leave."""
        if not line.strip():
            return True
        if not line.startswith("/"):
            try:
                if not await self.ask(line):
                    self._err("(stopped)")
            except MoaError as error:
                self._fail(error)
            return True
        name, *values = line[1:].split(maxsplit=2) or [""]
        if name == "bye":
            return False
        if name == "help":
            self._err(HELP)
        elif name == "reset":
            self.talk.reset()
            self._err("A new conversation begins.")
        elif name == "status":
            self._err(self.status)
        elif name == "offline":
            self.talk.go_offline()
            self._err("Going on without the server: what comes now is the small drafter's. /online connects again.")
        elif name == "online":
            self.talk.go_online()
            self._err("Connecting; what was written without the server will be verified.")
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
    try:
        await _run(settings, _read_question(prompt))
    except MoaError as error:
        if settings.json_events:
            write(error_line(error) + "\n")
        raise


async def _run(settings: ClientSettings, question: str | None) -> None:
    async with AsyncExitStack() as stack:
        link = await stack.enter_async_context(
            connect(settings.server, settings.connect_seconds, settings.silence_seconds)
        )
        chat = await _begin(settings, link)
        stack.push_async_callback(chat.talk.close)
        if settings.json_events:
            online = chat.talk.status.state is not LinkState.OFFLINE
            write(ready_line(chat.device.files.target_id, settings.server, online=online) + "\n")
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
    progress = make_progress()
    absent: UnavailableError | None = None
    served = None
    if not settings.offline:
        try:
            served = await link.describe()
        except UnavailableError as error:
            absent = error
    if served is not None:
        sources = await find_sources(settings, link, served, progress)
    else:
        sources = _find_alone(settings, absent)
    with _interruptible():
        device = load_device(settings, sources.served, progress, sources)
    mode = TalkSettings(settings.drafting, settings.run_ahead, settings.reconcile, tree=settings.mode == "tree")
    vocab_size = int(device.files.config["vocab_size"])
    talk = Talk(link, device, vocab_size, Codec[settings.codec.upper()], mode, offline=served is None)
    if served is None:
        why = absent.message if absent is not None else "Offline, as you wish."
        remark(f"{why} Answers are the small drafter's alone, far below {device.files.target_id}, until there is one.")
    if absent is not None:
        talk.go_online()
    return Chat(settings, device, talk, write, remark)


def _find_alone(settings: ClientSettings, absent: UnavailableError | None) -> Sources:
    """What this device can go on with by itself.

    Raises:
        MoaError: nothing; why the server is not there, if it was asked.
    """
    writes = settings.drafter not in ("lookup", "none")
    sources = find_local_sources(settings, make_progress()) if writes else None
    if sources is not None and (settings.drafter != "default" or sources.drafter is not None):
        return sources
    raise absent or NotFoundError(
        "There is no drafter on this device to write with.", hint="Connect to a server once: then it is here."
    )
