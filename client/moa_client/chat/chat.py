"""The chat: questions in, answers out, on a terminal or a pipe.

State: the engine and what the user has set. On a pipe only the answer goes to standard output; figures and remarks go
to standard error.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from difflib import get_close_matches

from moa_shared.errors import ConfigError, MoaError
from moa_shared.programs.config import load_settings
from moa_shared.protocol.finish_rule import Finish
from moa_shared.protocol.levels import BF16
from moa_shared.text.template import ChatTemplate

from moa_client.chat.ask import Asker
from moa_client.chat.display.page import Page
from moa_client.chat.json_events import error_line, event_line
from moa_client.chat.messages import (
    BACK_WORDS,
    HELP,
    LEFT_WORDS,
    UNREAD_WORDS,
    drafter_words,
    execution_words,
    link_words,
    notice_words,
    settled_remark,
    status_line,
    unchecked,
)
from moa_client.chat.views import make_view
from moa_client.conversation.events import (
    DrafterChanged,
    Earlier,
    Event,
    LinkChanged,
    LinkState,
    Notice,
    Refused,
    Settled,
)
from moa_client.conversation.transcript import Transcript
from moa_client.device.drafter_choice import ServerPace
from moa_client.device.loading import Device, change_drafter
from moa_client.engine.engine import ClientEngine
from moa_client.link.log import log_link_change
from moa_client.settings import SECTION, ClientSettings

COMMANDS = ("help", "reset", "set", "status", "offline", "online", "alone", "stats", "bye")
ALIASES = {"quit": "bye", "exit": "bye", "q": "bye", "?": "help", "h": "help"}
SETTABLE = ("temperature", "top_k", "top_p", "seed", "max_tokens", "stop", "system")


class Chat:
    """A conversation with a person.

    Args:
        settings: as started; /set changes a copy.
        engine: of the conversation.
        out, err: take text and remarks.
        unverified: also write text that no server has verified where it cannot be taken back.
        settle_seconds: how long an answer that ended without the server waits for it; 0: it is decided later.
        row_ms: time the server takes for each row of a verification, as it reported.
        page: the terminal, if it can move its cursor; it shows the answers.
    """

    def __init__(
        self,
        settings: ClientSettings,
        engine: ClientEngine,
        out: Callable[[str], None],
        err: Callable[[str], None],
        *,
        unverified: bool = True,
        settle_seconds: float = 0.0,
        row_ms: float = 0.0,
        page: Page | None = None,
    ) -> None:
        self.settings = settings
        self.engine = engine
        self.page = page
        self._out = out
        self._err = err
        self._unverified = unverified
        self._template = ChatTemplate(engine.device.tokenizer, settings.system)
        self._asker = Asker(engine, settle_seconds)
        self._row_ms = row_ms
        self._wished_offline = False
        self._told_offline = False

    @property
    def device(self) -> Device:
        """What this client holds."""
        return self.engine.device

    def greet(self) -> None:
        """Names the model and the server."""
        self._err(f"Talking to {self.device.files.target_id} at {self.settings.server}. /help lists commands.")
        self.warn()

    def warn(self) -> None:
        """Warns if the text may depend on more than prompt, settings and seed."""
        execution = self.device.execution
        if execution is not None and execution.level == BF16:
            self._err("(this server computes in bf16: the text may depend on what is verified together)")

    async def ask(self, question: str) -> bool:
        """Asks one question; False if its answer was stopped.

        Raises:
            MoaError: why there is no (more) answer.
        """
        template = self._template

        def turn(before: Sequence[int]) -> Sequence[int]:
            return template.next_turn(question, before) if before else template.first_turn(question)

        transcript = Transcript(self.device.decode, self.settings.stop, question)
        view = make_view(
            self.engine,
            self._out,
            self._err,
            json_events=self.settings.json_events,
            unverified=self._unverified,
            page=self.page,
            unsettled=self._asker.unsettled,
        )
        finished = await self._asker.answer(turn, self.settings.answer, transcript, view)
        finish = transcript.finish
        if finish is Finish.MAX_TOKENS:
            self._err(f"(cut after {self.settings.max_tokens} tokens: max_tokens)")
        elif finish is Finish.CONTEXT:
            self._err("(the context is full: /reset starts a new conversation)")
        return finished

    async def reconsider(self) -> None:
        """Changes the drafter if server or link speed has changed so much that another one would be faster."""
        device, engine = self.device, self.engine
        shelf, step_ms = device.shelf, engine.plain_step_ms
        if shelf is None or device.choice is None or step_ms is None:
            return
        choice = shelf.choose(ServerPace(step_ms, self._row_ms, engine.rtt_ms or 0.0), device.choice.name)
        if choice.name == device.choice.name:
            return
        changed = await asyncio.to_thread(change_drafter, device, choice, self.settings)
        engine.change_device(changed)
        alone = changed.choice.alone if changed.choice is not None else ""
        self._tell(DrafterChanged(choice.name, choice.reason, alone))

    async def attend(self) -> AsyncGenerator[None, None]:
        """Maintains the link between questions and reports what happens; yields after each event."""
        try:
            async with aclosing(self.engine.attend()) as events:
                async for event in events:
                    self._tell(event)
                    yield
        except MoaError as error:
            self._fail(error)
            yield

    @property
    def status(self) -> str:
        """The status line."""
        unsettled = self._asker.unsettled
        texts = [transcript.provisional for transcript in unsettled]
        return status_line(self.engine.status, unchecked(texts, len(unsettled)))

    @property
    def _execution(self) -> list[str]:
        return [execution_words(self.device.execution)] if self.device.execution is not None else []

    def _tell(self, event: Event) -> None:
        """Reports an event between questions."""
        log_link_change(event)
        earlier = self._asker.settle(event) if isinstance(event, Earlier | Settled | Refused) else None
        if self.settings.json_events:
            if line := event_line(event, earlier.committed if earlier else "", "", self.engine.figures):
                self._out(line + "\n")
        elif isinstance(event, Earlier | Settled | Refused):
            if earlier is not None and self.page is not None:
                self.page.show_earlier(event, earlier)
            elif earlier is not None and (words := settled_remark(event, earlier)):
                self._err(words)
        elif isinstance(event, Notice):
            self._err(notice_words(event))
        elif isinstance(event, LinkChanged):
            back = event.state is not LinkState.OFFLINE and self._told_offline
            words = BACK_WORDS if back else link_words(event)
            self._told_offline = event.state is LinkState.OFFLINE
            if words and not (self._told_offline and self._wished_offline):
                self._err(words)

    def _fail(self, error: MoaError) -> None:
        if self.settings.json_events:
            self._out(error_line(error) + "\n")
        self._err(f"Error: {error}")

    async def on_line(self, line: str) -> bool:
        """Handles a line from the user, a question or a command; False to leave."""
        if not line.strip():
            return True
        if not line.startswith("/") or line.startswith("//"):
            try:
                if not await self.ask(line.removeprefix("/")):
                    self._err("(stopped)")
                elif self._asker.unsettled and self._asker.unsettled[-1].finish is Finish.UNFINISHED:
                    self._err(LEFT_WORDS if self._asker.unsettled[-1].committed else UNREAD_WORDS)
                await self.reconsider()
            except MoaError as error:
                self._fail(error)
            return True
        typed, *values = line[1:].split(maxsplit=2) or [""]
        name = ALIASES.get(typed, typed)
        if name == "bye":
            return False
        if name == "help":
            self._err(HELP)
        elif name == "reset":
            self._reset()
            self._err("A new conversation begins.")
        elif name == "status":
            self._err("\n".join([self.status, drafter_words(self.device.choice), *self._execution]))
        elif name == "offline":
            self._wished_offline = True
            self.engine.go_offline()
            self._err("Offline now: the small model on this device answers. /online connects again.")
        elif name == "online":
            self._wished_offline = False
            self.engine.go_online()
            self._err("Connecting. The server will check what was written offline.")
        elif name == "alone":
            self.engine.write_alone()
            self._err("While the server is lost, the small model on this device writes on from now on, right or not.")
        elif name == "stats":
            self._err(self.engine.session_figures.lines())
        elif name == "set":
            self._set(values)
        else:
            self._err(_no_command(name))
        return True

    def _reset(self) -> None:
        self.engine.reset()
        self._asker.reset()
        if self.page is not None:
            self.page.forget_earlier()

    def _set(self, values: list[str]) -> None:
        if not values:
            self._err("\n".join(f"{name} {self._shown(name)}" for name in SETTABLE))
            return
        name, *rest = values
        if name not in SETTABLE:
            self._err(f"{name} cannot be set here.{_nearest(name, SETTABLE)} What can: {', '.join(SETTABLE)}.")
            return
        if not rest:
            self._err(f"{name} is {self._shown(name)}.")
            return
        changed = self.settings.model_dump()
        if rest[0] == "default":
            del changed[name]
        else:
            changed[name] = (rest[0],) if name == "stop" else rest[0]
        try:
            self.settings = load_settings(ClientSettings, SECTION, changed, environment={}, shown=str)
        except ConfigError as error:
            self._err(f"Error: {error.message} {name} is still {self._shown(name)}.")
            return
        if name == "system":
            self._template = ChatTemplate(self.device.tokenizer, self.settings.system)
            self._reset()
            self._err("A new conversation begins, with this system prompt.")
        else:
            self._err(f"{name} is {self._shown(name)} now.")

    def _shown(self, name: str) -> str:
        value = getattr(self.settings, name)
        if isinstance(value, tuple):
            return " ".join(map(repr, value)) or "not set"
        return "the model's own" if value is None else str(value)


def _no_command(name: str) -> str:
    return (
        f"There is no command /{name}.{_nearest(name, (*COMMANDS, *ALIASES), '/')} /help lists them; a question that "
        "begins with / is asked with two: //"
    )


def _nearest(name: str, known: Sequence[str], mark: str = "") -> str:
    """Suggests what may have been meant, as a sentence; empty if nothing is close."""
    near = get_close_matches(name, known, 1, cutoff=0.7)
    return f" Did you mean {mark}{near[0]}?" if near else ""
