"""The commands of a chat by name, and what it can set for its next answers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import NamedTuple

from moa_shared.programs.config import load_settings

from moa_client.settings import SECTION, ClientSettings


class ChatCommand(NamedTuple):
    """One command. `values`: what may follow its name, for completion."""

    name: str
    usage: str
    text: str
    values: tuple[str, ...] = ()


SETTABLE = (
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "max_tokens",
    "stop",
    "reasoning_effort",
    "thinking",
    "system",
    "render",
)
TABLE = (
    ChatCommand("help", "/help", "this list"),
    ChatCommand("reset", "/reset", "start a new conversation"),
    ChatCommand("retry", "/retry", "ask the last question again, with another seed if answers are sampled"),
    ChatCommand("continue", "/continue", "go on with the last answer, if a limit has cut it or you have stopped it"),
    ChatCommand("keep", "/keep", "have this device's text back where the server has replaced it in the last answer"),
    ChatCommand("undo", "/undo", "take back the last question and its answer"),
    ChatCommand("edit", "/edit [TEXT]", "edit TEXT, or the last question, in $VISUAL or $EDITOR, and ask it"),
    ChatCommand("file", "/file [PATH]", "have a text file go with the next question; alone: which do, and forget them"),
    ChatCommand("copy", "/copy [code]", "copy the last answer, or the last block of code in it", ("code",)),
    ChatCommand("thinking", "/thinking", "show the reasoning before the last answer"),
    ChatCommand("set", "/set", "show what can be set"),
    ChatCommand(
        "set",
        "/set NAME VALUE",
        f"set it for the next answers ({', '.join(SETTABLE)}); VALUE may be: default",
        SETTABLE,
    ),
    ChatCommand("system", "/system [TEXT]", "show the system prompt, or set it and begin again", ("default",)),
    ChatCommand("list", "/list", "the newest conversations that are kept"),
    ChatCommand("load", "/load ID", "continue one of them here; ID may be: last"),
    ChatCommand("save", "/save [TITLE]", "say under which name this conversation is kept, and give it a title"),
    ChatCommand("title", "/title [TEXT]", "show the title, or set it"),
    ChatCommand("model", "/model", "the model, its server, the drafter and how exact the text is"),
    ChatCommand("status", "/status", "the state of the link"),
    ChatCommand("offline", "/offline, /online", "do without the server: questions wait for it; connect again"),
    ChatCommand("standalone", "/standalone", "have the small model here answer while the server is away, much worse"),
    ChatCommand("stats", "/stats", "all figures of the last answer"),
    ChatCommand("bye", "/bye", "leave (also /quit, /exit, Ctrl-D)"),
)
NAMES = (*dict.fromkeys(command.name for command in TABLE), "online")
ALIASES = {"quit": "bye", "exit": "bye", "q": "bye", "?": "help", "h": "help"}
HELP_END = (
    "Dim text was written by the small model on this device. The server checks it, and corrects it if it must, as soon "
    "as it is available; what it has put in place of other words is underlined for a moment. Dim text in italics is "
    "less likely to stay.",
    "Ctrl-C stops an answer; a second one does not wait for the server. Where an answer waits for the server, Ctrl-O "
    "has this device write on, right or not.",
    "A line that ends with \\ continues in the next one; three double quotes begin and end a block; Alt-Enter makes a "
    "new line. The arrow keys bring back earlier questions, Ctrl-R searches them, Tab completes commands.",
)


def help_text() -> str:
    """What /help says: a line for each command and each paragraph, which terminals wrap."""
    lines = [f"{command.usage:20}{command.text}" for command in TABLE]
    return "\n".join([*lines, "//QUESTION          a question that begins with one /", *HELP_END])


def resolve(typed: str) -> str | None:
    """The name of the command that was typed; None: there is none."""
    name = ALIASES.get(typed, typed)
    return name if name in NAMES else None


def values_of(name: str, before: tuple[str, ...]) -> tuple[str, ...]:
    if not before:
        return next((command.values for command in TABLE if command.name == name and command.values), ())
    if name == "set" and before == ("render",):
        return ("on", "off")
    return ("default",) if name == "set" and len(before) == 1 else ()


def unknown_words(typed: str) -> str:
    return (
        f"There is no command /{typed}.{nearest(typed, (*NAMES, *ALIASES), '/')} /help lists them; a question that "
        "begins with / is asked with two: //"
    )


def nearest(name: str, known: Iterable[str], mark: str = "") -> str:
    """Suggests what may have been meant, as a sentence; empty if nothing is close."""
    near = get_close_matches(name, list(known), 1, cutoff=0.7)
    return f" Did you mean {mark}{near[0]}?" if near else ""


_OPEN = {"system": "the model's own", "reasoning_effort": "the model's own"}


def change(settings: ClientSettings, name: str, value: str) -> ClientSettings:
    """The settings with another value. `value`: as typed; `default`: what it is without being set."""
    given = {} if value == "default" else {name: (value,) if name == "stop" else value}
    loaded = load_settings(ClientSettings, SECTION, given, environment={}, shown=str)
    return replace(settings, **{name: getattr(loaded, name)})


def shown(settings: ClientSettings, name: str, sampling: Mapping[str, float]) -> str:
    """A value in words. `sampling`: what counts where nothing is set, by name."""
    value = getattr(settings, name)
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(repr, value)) or "not set"
    if value is None and name in sampling:
        return f"{sampling[name]:g} (the default)"
    if value is None:
        return _OPEN.get(name, "a new one for each question")
    return f"{value:g}" if isinstance(value, float) else str(value)
