"""What the user of a chat types: questions are asked, commands carried out. State: none of its own; the chat has it."""

import re
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from moa_shared.errors import CancelledAnswerError, ConfigError, MoaError
from moa_shared.plain_text import plain_line
from moa_shared.programs.config import load_settings
from moa_shared.protocol.messages import Finish
from moa_shared.sampling.settings import SEED_LIMIT

from moa_client.chat import messages
from moa_client.chat.chat import Chat
from moa_client.chat.question import file_words, folded, read_text_file
from moa_client.settings import SECTION, ClientSettings

SETTABLE = ("temperature", "top_k", "top_p", "seed", "max_tokens", "reasoning_effort", "thinking", "system")
_ALL = ", ".join(SETTABLE)
# As it is typed: what it does.
TABLE = {
    "/help": "this list",
    "/reset": "start a new conversation",
    "/retry": "ask the last question again, with another seed if answers are sampled",
    "/continue": "go on with the last answer, if a limit has cut it or you have stopped it",
    "/keep": "have this device's text back where the server has replaced it in the last answer",
    "/undo": "take back the last question and its answer",
    "/file [PATH]": "have a text file go with the next question; alone: which do, and forget them",
    "/thinking": "show the reasoning before the last answer",
    "/set": "show what can be set",
    "/set NAME VALUE": f"set it for the next answers ({_ALL}); VALUE may be: default",
    "/system [TEXT]": "show the system prompt, or set it and begin again",
    "/save [TITLE]": "say under which name this conversation is kept, and give it a title",
    "/model [NAME]": "list the models of your servers, or have that one answer from the next question on",
    "/status": "the state of the link, the model, its server, the drafter and how exact the text is",
    "/offline, /online": "do without the server: questions wait for it; connect again",
    "/standalone": "have the small model here answer while the server is away, much worse",
    "/stats": "all figures of the last answer",
    "/bye": "leave (also /quit, /exit, Ctrl-D)",
    "//QUESTION": "a question that begins with one /",
}
NAMES = tuple(dict.fromkeys(re.findall(r"(?<!/)/(\w+)", " ".join(TABLE))))
ALIASES = {"quit": "bye", "exit": "bye", "q": "bye", "?": "help", "h": "help"}
GONE = {
    "copy": "Select the text in the terminal, or use the page's button.",
    "edit": "Arrow up brings a question back, and Alt-Enter makes a new line.",
    "list": "moa-client history list has the conversations.",
    "load": "A chat continues one: moa-client chat --continue, or --conversation ID.",
    "title": "/save TITLE gives one.",
}
HELP_END = (
    "Dim text was written by the small model on this device. The server checks it, and corrects it if it must, as soon "
    "as it is available; what it has put in place of other words is underlined for a moment. Dim text in italics is "
    "less likely to stay.",
    "Ctrl-C stops an answer; a second one does not wait for the server. Alt-Enter makes a new line. The arrow keys "
    "bring back earlier questions, Ctrl-R searches them, Tab completes commands.",
)
NOTHING_ASKED = "Nothing was asked yet."


def nearest(name: str, known: Iterable[str], mark: str = "") -> str:
    """Suggests what may have been meant, as a sentence; empty if nothing is close."""
    near = get_close_matches(name, list(known), 1, cutoff=0.7)
    return f" Did you mean {mark}{near[0]}?" if near else ""


class CommandHandler:
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
            self._chat.say(f"Error: {error}")
        return True

    async def _run(self, line: str) -> bool:
        """Carries out a command, given without its slash; False to leave."""
        typed, _, rest = line.strip().partition(" ")
        name = ALIASES.get(typed, typed)
        if name == "bye":
            return False
        if name in ("continue", "keep"):
            await (self._chat.keep if name == "keep" else self._chat.continue_answer)()
        elif name in NAMES:
            await getattr(self, f"_{name}")(rest.strip())
        elif name in GONE:
            self._chat.say(f"There is no /{name} any more. {GONE[name]}")
        else:
            near = nearest(typed, (*NAMES, *ALIASES), "/")
            about = "/help lists them; a question that begins with / is asked with two: //"
            self._chat.say(f"There is no command /{typed}.{near} {about}")
        return True

    async def _save(self, rest: str) -> None:
        """Says under which name the conversation is kept, and gives it a title."""
        facts = self._chat.conversation.facts
        if not facts.identifier:
            self._chat.say("This conversation is not kept: --no-history, or the history cannot be written.")
            return
        if rest:
            self._chat.conversation.set_title(rest)
        title = rest or facts.title
        name = facts.identifier + (f": {plain_line(title)}" if title else "")
        self._chat.say(f"Kept as {name}. Continue it with moa-client chat --conversation {facts.identifier}.")

    async def _reset(self, rest: str) -> None:
        await self._chat.switch(None)
        self._chat.say("A new conversation begins.")

    async def _retry(self, rest: str) -> None:
        chat = self._chat
        if (last := chat.follower.last_asked) is None:
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

    async def _undo(self, rest: str) -> None:
        if (last := self._chat.follower.last_asked) is None:
            self._chat.say(NOTHING_ASKED)
            return
        await self._chat.rewind(last.number - 1)
        self._chat.say(f"Taken back: {messages.short(folded(last.question), 60)}")

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

    async def _thinking(self, rest: str) -> None:
        chat, reasoning = self._chat, ""
        last = chat.follower.last
        if last is not None and (split := chat.view.folding.split(last)) is not None:
            split.read(last.committed, last.tokens)
            reasoning = split.reasoning + split.ahead(last.provisional)[0]
        chat.say(reasoning.strip() or "The last answer came without reasoning that is marked.")

    async def _set(self, rest: str) -> None:
        chat = self._chat
        name, _, value = rest.partition(" ")
        if not name:
            chat.say("\n".join(f"{name} {self._shown(name)}" for name in SETTABLE))
        elif name not in SETTABLE:
            chat.say(f"{name} cannot be set here.{nearest(name, SETTABLE)} What can: {_ALL}.")
        elif not value.strip():
            chat.say(f"{name} is {self._shown(name)}.")
        else:
            await self._change(name, value.strip())

    async def _change(self, name: str, value: str) -> None:
        """Sets it for the next answers. `value`: as typed; `default`: what it is without being set."""
        chat, before = self._chat, self._chat.settings
        given = {} if value == "default" else {name: value}
        try:
            loaded = load_settings(ClientSettings, SECTION, given, environment={}, shown=str)
            chat.settings = replace(before, **{name: getattr(loaded, name)})
            if name == "system":
                await chat.switch(None)
                chat.say("A new conversation begins, with this system prompt.")
            else:
                chat.say(f"{name} is {self._shown(name)} now.")
        except ConfigError as error:
            chat.say(f"Error: {error.message} {name} is still {self._shown(name)}.")
        except MoaError:
            chat.settings = before
            raise

    def _shown(self, name: str) -> str:
        value, sampling = getattr(self._chat.settings, name), self._chat.conversation.facts.sampling
        if value is None and name in sampling:
            return f"{sampling[name]:g} (the default)"
        if value is None:
            return "a new one for each question" if name == "seed" else "the model's own"
        return f"{value:g}" if isinstance(value, float) else str(value)

    async def _system(self, rest: str) -> None:
        await self._set(f"system {rest}")

    async def _help(self, rest: str) -> None:
        # A line for each command and each paragraph, which terminals wrap.
        self._chat.say("\n".join([*(f"{usage:20}{text}" for usage, text in TABLE.items()), *HELP_END]))

    async def _model(self, rest: str) -> None:
        if rest:
            self._chat.say(f"(asking for {plain_line(rest)} ...)")
        await self._chat.choose_model(rest or None)

    async def _status(self, rest: str) -> None:
        self._chat.say(f"{self._chat.status()}\n{messages.facts_words(self._chat.conversation.facts)}")

    async def _stats(self, rest: str) -> None:
        cost = self._chat.follower.figures
        lines = [messages.cost_line(cost), messages.cost_details(cost)] if cost is not None else []
        if (last := self._chat.follower.last) is not None:
            lines.append(f"chosen with {last.options.words()}")
        self._chat.say("\n".join(filter(None, lines)))

    async def _offline(self, rest: str) -> None:
        await self._chat.set_offline(True)
        facts = self._chat.conversation.facts
        self._chat.say(messages.offline_words(facts, self._chat.settings.standalone))

    async def _online(self, rest: str) -> None:
        await self._chat.set_offline(False)
        self._chat.say("Connecting. The server will check what was written offline.")

    async def _standalone(self, rest: str) -> None:
        chat = self._chat
        chat.conversation.write_standalone()
        chat.say(messages.worth_words(chat.conversation.facts))
        last = chat.follower.last
        if last is None or last is not chat.follower.last_asked or last.committed or last.provisional:
            return
        if last.is_unsettled and last.finish is Finish.UNFINISHED:  # its question waits for a server
            await chat.rewind(last.number - 1)
            await chat.put(last.question)
