"""The chat: questions in, answers out, on a terminal or a pipe.

State: what the user has set; the conversation itself is the host's. On a pipe only the answer goes to standard output;
figures and remarks go to standard error.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace

from moa_shared.errors import CancelledAnswerError, ConfigError, ConflictError
from moa_shared.plain_text import without_controls
from moa_shared.protocol.messages import Finish
from moa_shared.sampling.settings import BF16

from moa_client.chat import messages
from moa_client.chat.ask import AnswerFollower
from moa_client.chat.keys import Permit
from moa_client.chat.question import TextFile, file_words, folded, with_files
from moa_client.chat.views import Folding, View
from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText, Update, nothing_withdrawn
from moa_client.conversation.options import AnswerOptions
from moa_client.settings import NONE, ClientSettings, read_kept, write_kept
from moa_client.surface.conversation import OpenConversation

SHOWN_ANSWERS = 20  # of a conversation that is continued
# Of an identifier, or a new one with a system prompt (None: the model's own).
Opener = Callable[[str | None, str | None], Awaitable[OpenConversation]]


class Chat:
    """A conversation with a person.

    Args:
        settings: as started; /set changes a copy.
        view: where answers are shown, and remarks.
        open_it: opens another conversation.
        permit: says whether a tool may be run.
        settle_seconds: how long an answer that ended without the server waits for it; 0: it is decided later.
    """

    def __init__(
        self,
        settings: ClientSettings,
        conversation: OpenConversation,
        view: View,
        open_it: Opener,
        permit: Permit,
        settle_seconds: float = 0.0,
    ) -> None:
        self.settings = settings
        self.files: list[TextFile] = []  # that go with the next question
        self.view = view
        view.status = self.status
        self.say = view.say
        self._open = open_it
        self._permit = permit
        self._settle_seconds = settle_seconds
        self._wished_offline = settings.offline
        self._told_offline = False
        self._follow(conversation)

    def _follow(self, conversation: OpenConversation) -> None:
        self.conversation = conversation
        self.follower = AnswerFollower(conversation, self.view, self._permit, self._settle_seconds)
        self.view.folding = Folding(conversation.facts.thinking, lambda: self.settings.thinking)

    def greet(self) -> None:
        facts = self.conversation.facts
        self.say(f"Talking to {facts.target} at {facts.server}. /help lists commands.")
        for file in self.files:
            self.say(file_words(file))
        self.warn()
        if facts.offer and self.settings.companion != NONE and read_kept() is None:
            self.say(messages.OFFER_WORDS % facts.offer)
            with suppress(ConfigError):  # where it cannot be kept, it is said again
                write_kept("")

    def warn(self) -> None:
        """Warns if the text may depend on more than prompt, settings and seed."""
        if self.conversation.facts.level == BF16:
            self.say("(this server computes in bf16: the text may depend on what is verified together)")

    async def ask(self, question: str, *, is_only: bool = True) -> AnswerText:
        """Asks one question; its answer. `is_only`: the chat is about nothing else."""
        await self._open_again()
        question, self.files = with_files(question, self.files), []
        text, finished = await self.follower.answer(question, self._options())
        return self._ended(text, finished=finished, is_only=is_only)

    def _ended(self, text: AnswerText, *, finished: bool, is_only: bool = False) -> AnswerText:
        """Says why an answer has ended, where its text does not; the answer."""
        said = [messages.finish_words(text, is_only=is_only)]
        if not is_only:
            said.append(messages.withdrawn_words(text.withdrawn) if text.withdrawn else "")
            split = self.view.folding.split(text)
            if split is not None and split.reasoning and self.settings.thinking == "fold":
                tokens = messages.counted(split.reasoning_tokens, "token")
                said.append(f"(thought for {tokens}: /thinking shows it)")
        for words in filter(None, said):
            self.say(words)
        if not finished:
            raise CancelledAnswerError("The answer was stopped.")
        return text

    async def attend(self) -> AsyncGenerator[None, None]:
        """Reports what happens between questions; yields after each update."""
        async with aclosing(self.conversation.updates()) as updates:
            async for update in updates:
                self._tell(update)
                yield

    def _tell(self, update: Update) -> None:
        about, event = self.follower.take(update), update.event
        words = messages.event_words(event)
        if isinstance(event, events.CallWanted) and event.waits:
            words += f"\n{messages.CALL_WAITS_WORDS}"
        elif isinstance(event, events.LinkChanged):
            was_told, self._told_offline = self._told_offline, event.state is events.LinkState.OFFLINE
            if self._told_offline and self._wished_offline:
                words = ""
            elif was_told and not self._told_offline:
                words = messages.BACK_WORDS
        elif about is not None and not isinstance(event, events.CallEvent | events.Failed):
            self.view.show_earlier(update, about)
            is_withdrawn = isinstance(event, events.Settled) and about.withdrawn and about is self.follower.last
            words = messages.withdrawn_words(about.withdrawn) if is_withdrawn else ""
        elif isinstance(event, events.HeldBack):
            words = ""
        if words:
            self.say(words)

    def _options(self) -> AnswerOptions:
        options, marks = self.settings.options, self.conversation.facts.thinking
        can_be_off = marks is not None and "none" in marks.efforts
        if self.settings.thinking == "off" and can_be_off and options.reasoning_effort is None:
            return replace(options, reasoning_effort="none")
        return options

    def status(self, reason: str = "", text: AnswerText | None = None) -> str:
        """The status line. `reason`: why the link is as it is; `text`: what is shown of an answer that is written."""
        folding = self.view.folding
        earlier = [folding.shown(each) for each in self.follower.unsettled]
        provisional = [each.provisional for each in (*earlier, *filter(None, [text]))]
        last = self.follower.last if text is not None else None
        thinking = folding.thinking_tokens(last) if last is not None else 0
        return messages.status_line(self.conversation.status, provisional, len(earlier), reason, thinking)

    async def close(self) -> None:
        await self.conversation.close()

    def show_answers(self) -> None:
        """Shows the newest questions and answers of before, as if they were asked here."""
        texts = self.follower.texts
        if hidden := max(0, len(texts) - SHOWN_ANSWERS):
            identifier = self.conversation.facts.identifier
            self.say(f"({hidden} earlier questions: moa-client history show {identifier})")
        for answer in texts[hidden:]:
            for answered in answer.options.results:
                self.say(messages.answered_words(answered))
            if not answer.options.results:
                self.say(f"> {without_controls(folded(answer.question))}")
            self.view.begin()
            self.view.end(answer)

    async def switch(self, identifier: str | None) -> None:
        """Opens another conversation; None: a new one, with the system prompt that is set."""
        opened = await self._open(identifier, self.settings.system)
        if self._wished_offline != self.settings.offline:  # as in the one before
            (opened.go_offline if self._wished_offline else opened.go_online)()
        if identifier is None and self.conversation.model not in ("", opened.facts.target):
            opened.choose_model(self.conversation.model)
        await self.conversation.close()
        self.view.forget(self.follower.forget(0))
        self._follow(opened)

    async def _open_again(self) -> None:
        """Opens the conversation again if the process that ran it has gone; says what has become of its answers."""
        if not self.conversation.is_gone:
            return
        before = {text.number: text.committed for text in self.follower.texts}
        await self.switch(self.conversation.facts.identifier or None)
        for text in self.follower.texts:
            if text.committed != before.get(text.number) and not text.is_unsettled:
                shown = self.view.folding.shown(text).committed
                self.say(f"(The answer to {text.question!r} has been completed meanwhile:)\n{shown}")

    async def put(self, question: str) -> None:
        self._say_left(await self.ask(question, is_only=False))

    async def continue_answer(self) -> None:
        """Continues the newest answer by as many tokens as an answer may have."""
        await self._open_again()
        if (last := self.follower.last) is None:
            raise ConflictError("There is no answer to continue.", hint="Ask something first.")
        text, finished = await self.follower.continue_answer(last, self.settings.max_tokens)
        self._say_left(self._ended(text, finished=finished))

    async def keep(self) -> None:
        """Has this device's text back where the server has replaced it in the newest answer."""
        if (last := self.follower.last) is None or not last.withdrawn:
            raise nothing_withdrawn()
        await self.follower.keep(last)

    def _say_left(self, answer: AnswerText) -> None:
        if answer.is_unsettled and answer.finish is Finish.UNFINISHED:
            unread = messages.WAITS_OFFLINE_WORDS if self._wished_offline else messages.UNREAD_WORDS
            self.say(messages.LEFT_WORDS if answer.committed else unread)

    async def rewind(self, answers: int) -> None:
        """Keeps the first `answers` answers."""
        await self._open_again()
        self.conversation.rewind(answers)
        self.view.forget(self.follower.forget(answers))

    async def set_offline(self, is_offline: bool) -> None:
        """Continues without the server, or with it again, as the user wishes."""
        await self._open_again()
        self._wished_offline = is_offline
        (self.conversation.go_offline if is_offline else self.conversation.go_online)()

    async def choose_model(self, name: str | None) -> None:
        """Has the model of a name answer from the next question on; None: lists them."""
        await self._open_again()
        self.conversation.choose_model(name)

    async def begin_with(self, model: str) -> None:
        """Has the model of a name answer before anything is asked; raises why it cannot."""
        self.conversation.choose_model(model)
        async with aclosing(self.conversation.updates()) as updates:
            async for update in updates:
                if isinstance(update.event, events.Failed):
                    raise update.event.error
                if isinstance(update.event, events.ModelsChanged):
                    self.follower.take(update)
                    return
                self._tell(update)
