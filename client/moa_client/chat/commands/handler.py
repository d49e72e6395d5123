"""What the user of a chat types: questions are asked, commands carried out. State: none of its own; the chat has it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from moa_shared.errors import CancelledAnswerError, ConfigError, MoaError
from moa_shared.sampling.settings import SEED_LIMIT
from moa_shared.text.plain_text import plain_line

from moa_client.chat import messages
from moa_client.chat.chat import Chat
from moa_client.chat.commands import table
from moa_client.chat.commands.desktop import copy_text, last_code
from moa_client.chat.question import file_words, folded, read_text_file

if TYPE_CHECKING:
    from moa_client.history.store import HistoryStore

LISTED = 10
NOT_KEPT = "This conversation is not kept: --no-history, or the history cannot be written."


def kept_names(chat: Chat) -> Sequence[str]:
    """What /load takes, for completion; nothing where the history cannot be read."""
    try:
        with _history(chat) as store:
            return ["last", *(each.identifier for each in store.list(LISTED))] if store is not None else []
    except MoaError:  # its sentence belongs below the command, not into a menu
        return []


@contextmanager
def _history(chat: Chat) -> Iterator[HistoryStore | None]:
    """The history; None where nothing is kept. A chat through the daemon starts without it."""
    from moa_client.history.store import HistoryStore

    if not chat.settings.history:
        yield None
        return
    store = HistoryStore(chat.settings.history_dir)
    try:
        yield store
    finally:
        store.close()


NOTHING_ASKED = "Nothing was asked yet."


class CommandHandler:
    """The commands of one chat."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    async def on_line(self, line: str) -> bool:
        """Handles a line, a question or a command; False to leave."""
        if not line.strip():
            return True
        try:
            if line.startswith("/") and not line.startswith("//"):
                return await self._run(line[1:])
            await self._chat.put(line.removeprefix("/"))
        except CancelledAnswerError:
            self._chat.say("(stopped)")
        except MoaError as error:
            self._chat.fail(error)
        return True

    async def _run(self, line: str) -> bool:
        """Carries out a command, given without its slash; False to leave."""
        typed, _, rest = line.strip().partition(" ")
        name = table.resolve(typed)
        if name == "bye":
            return False
        if name is None:
            self._chat.say(table.unknown_words(typed))
        else:
            await getattr(self, f"_{name}")(rest.strip())
        return True

    async def _list(self, rest: str) -> None:
        from moa_client.history.exports import list_table

        with _history(self._chat) as store:
            found = store.list(LISTED) if store is not None else []
        self._chat.say(list_table(found).rstrip("\n") if found else "No conversation is kept yet.")

    async def _load(self, rest: str) -> None:
        if not rest:
            self._chat.say("Name one: /load ID, as /list shows it, or /load last.")
            return
        with _history(self._chat) as store:
            if store is None:
                self._chat.say(NOT_KEPT)
                return
            identifier = store.find(rest)
        if identifier == self._chat.conversation.facts.identifier:
            self._chat.say("That is this conversation.")
            return
        await self._chat.switch(identifier)
        self._chat.show_answers()

    async def _save(self, rest: str) -> None:
        """Says under which name the conversation is kept, and gives it a title."""
        facts = self._chat.conversation.facts
        if not facts.identifier:
            self._chat.say(NOT_KEPT)
            return
        if rest:
            self._chat.conversation.set_title(rest)
        title = rest or facts.title
        name = facts.identifier + (f": {plain_line(title)}" if title else "")
        self._chat.say(f"Kept as {name}. Continue it with /load {facts.identifier}.")

    async def _title(self, rest: str) -> None:
        if rest:
            self._chat.conversation.set_title(rest)
        title = rest or self._chat.conversation.facts.title
        self._chat.say(
            f"The title is {plain_line(title)}." if title else "There is no title yet: /title TEXT sets one."
        )

    async def _reset(self, rest: str) -> None:
        await self._chat.switch(None)
        self._chat.say("A new conversation begins.")

    async def _retry(self, rest: str) -> None:
        chat = self._chat
        if (last := chat.last_asked) is None:
            chat.say(NOTHING_ASKED)
            return
        settings, sampling = chat.settings, chat.conversation.facts.sampling
        is_sampled = sampling.get("temperature") if settings.temperature is None else settings.temperature
        if is_sampled and settings.seed is None:
            chat.say("Asked again, with another seed.")
        elif is_sampled:
            chat.settings = replace(settings, seed=((settings.seed or 0) + 1) % SEED_LIMIT)
            chat.say(f"Asked again, with seed {chat.settings.seed}.")
        else:
            chat.say("Asked again. At temperature 0 the answer is the same; /set temperature 0.7 lets it differ.")
        await chat.rewind(last.number - 1)
        await chat.put(last.question)

    async def _continue(self, rest: str) -> None:
        await self._chat.continue_answer()

    async def _keep(self, rest: str) -> None:
        await self._chat.keep()

    async def _undo(self, rest: str) -> None:
        if (last := self._chat.last_asked) is None:
            self._chat.say(NOTHING_ASKED)
            return
        await self._chat.rewind(last.number - 1)
        self._chat.say(f"Taken back: {short(last.question)}")

    async def _edit(self, rest: str) -> None:
        self._chat.say("/edit needs a terminal.")

    async def _file(self, rest: str) -> None:
        chat = self._chat
        if rest:
            file = read_text_file(Path(rest))
            chat.files.append(file)
            chat.say(file_words(file))
            return
        names = ", ".join(file.name for file in chat.files)
        chat.files.clear()
        chat.say(f"No file goes with the next question any more: {names}." if names else "No file goes with it.")

    async def _copy(self, rest: str) -> None:
        chat = self._chat
        last = chat.last_answer
        text = chat.last_text
        if rest not in ("", "code"):
            chat.say(f"/copy copies the answer, /copy code its last block of code.{table.nearest(rest, ('code',))}")
            return
        if rest == "code":
            text = last_code(text)
        if not text.strip():
            chat.say("There is no code in the last answer." if rest and last is not None else "There is no answer yet.")
            return
        terminal = sys.stdout.write if chat.page is not None else None
        chat.say(await copy_text(text.strip("\n"), terminal))

    async def _thinking(self, rest: str) -> None:
        self._chat.say(self._chat.last_reasoning.strip() or "The last answer came without reasoning that is marked.")

    async def _set(self, rest: str) -> None:
        chat = self._chat
        if not rest:
            chat.say("\n".join(f"{name} {self._shown(name)}" for name in table.SETTABLE))
            return
        name, _, value = rest.partition(" ")
        if name not in table.SETTABLE:
            near, all_of_them = table.nearest(name, table.SETTABLE), ", ".join(table.SETTABLE)
            chat.say(f"{name} cannot be set here.{near} What can: {all_of_them}.")
            return
        if not value.strip():
            chat.say(f"{name} is {self._shown(name)}.")
            return
        before = chat.settings
        try:
            chat.settings = table.change(before, name, value.strip())
        except ConfigError as error:
            chat.say(f"Error: {error.message} {name} is still {self._shown(name)}.")
            return
        if name == "system":
            try:
                await chat.switch(None)
            except MoaError:
                chat.settings = before
                raise
            chat.say("A new conversation begins, with this system prompt.")
        else:
            chat.say(f"{name} is {self._shown(name)} now.")

    def _shown(self, name: str) -> str:
        return table.shown(self._chat.settings, name, self._chat.conversation.facts.sampling)

    async def _system(self, rest: str) -> None:
        await self._set(f"system {rest}")

    async def _help(self, rest: str) -> None:
        self._chat.say(table.help_text())

    async def _model(self, rest: str) -> None:
        self._chat.say(messages.model_words(self._chat.conversation.facts))

    async def _status(self, rest: str) -> None:
        facts = self._chat.conversation.facts
        lines = [self._chat.status, messages.drafter_words(facts), messages.execution_words(facts)]
        self._chat.say("\n".join(filter(None, lines)))

    async def _stats(self, rest: str) -> None:
        lines = [await self._chat.conversation.stats()]
        if (last := self._chat.last_answer) is not None:
            lines.append(f"chosen with {last.options.words()}")
        self._chat.say("\n".join(filter(None, lines)))

    async def _offline(self, rest: str) -> None:
        chat, facts = self._chat, self._chat.conversation.facts
        chat.set_offline(True)
        chat.say(messages.offline_words(facts, writes=messages.writes_standalone(facts, chat.settings.standalone)))

    async def _online(self, rest: str) -> None:
        self._chat.set_offline(False)
        self._chat.say("Connecting. The server will check what was written offline.")

    async def _standalone(self, rest: str) -> None:
        chat = self._chat
        chat.conversation.write_standalone()
        chat.say(messages.worth_words(chat.conversation.facts))
        if (waiting := chat.waiting_question) is not None:
            await chat.rewind(waiting.number - 1)
            await chat.put(waiting.question)


def short(question: str) -> str:
    """A question on one line, as much as is needed to recognize it."""
    line = " ".join(plain_line(folded(question)).split())
    return line if len(line) <= 60 else f"{line[:57]}..."
