"""A chat's commands about conversations that are kept: /list, /load, /save, /title. They read the history itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from moa_shared.errors import MoaError
from moa_shared.text.plain_text import plain_line

from moa_client.chat.chat import Chat

if TYPE_CHECKING:
    from moa_client.history.store import HistoryStore

LISTED = 10
NOT_KEPT = "This conversation is not kept: --no-history, or the history cannot be written."


async def list_kept(chat: Chat, rest: str) -> None:
    """Lists the newest conversations."""
    from moa_client.history.exports import list_table

    with _history(chat) as store:
        found = store.list(LISTED) if store is not None else []
    chat.say(list_table(found).rstrip("\n") if found else "No conversation is kept yet.")


async def load_kept(chat: Chat, rest: str) -> None:
    """Continues a conversation of before in this chat."""
    if not rest:
        chat.say("Name one: /load ID, as /list shows it, or /load last.")
        return
    with _history(chat) as store:
        if store is None:
            chat.say(NOT_KEPT)
            return
        identifier = store.find(rest)
    if identifier == chat.conversation.facts.identifier:
        chat.say("That is this conversation.")
        return
    await chat.switch(identifier)
    chat.show_answers()


async def save_kept(chat: Chat, rest: str) -> None:
    """Says under which name the conversation is kept, and gives it a title."""
    facts = chat.conversation.facts
    if not facts.identifier:
        chat.say(NOT_KEPT)
        return
    if rest:
        chat.conversation.set_title(rest)
    title = rest or facts.title
    name = facts.identifier + (f": {plain_line(title)}" if title else "")
    chat.say(f"Kept as {name}. Continue it with /load {facts.identifier}.")


async def title_kept(chat: Chat, rest: str) -> None:
    """Shows or sets the title."""
    if rest:
        chat.conversation.set_title(rest)
    title = rest or chat.conversation.facts.title
    chat.say(f"The title is {plain_line(title)}." if title else "There is no title yet: /title TEXT sets one.")


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
