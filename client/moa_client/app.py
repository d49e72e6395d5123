"""The client program: opens a conversation, of the daemon or of its own, then gives one answer or opens a chat.

State: none of its own. Without a server it continues with what this device has, and says so; a single answer that
no server has verified is an error unless the user asked for it. Imports nothing heavy: a chat that attaches to the
daemon is there at once.
"""

import os
import shutil
import sys
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TextIO

from moa_shared.errors import ConfigError, MoaError, UnavailableError
from moa_shared.plain_text import without_controls
from moa_shared.programs.entry import StartLine, write_output

from moa_client.chat.chat import Chat, Opener
from moa_client.chat.keys import KeyPermission, quiet_keys, unasked
from moa_client.chat.messages import cost_line, offline_words, worth_words
from moa_client.chat.question import read_question, read_text_file
from moa_client.chat.signals import interruptible_work, leaving_on_signals
from moa_client.chat.views import JsonView, PipeView, View, error_line, ready_line
from moa_client.daemon.process import find_daemon, find_paths, start_daemon
from moa_client.servers.book import at_addresses, find_servers, read_book
from moa_client.settings import ClientSettings, with_kept
from moa_client.surface.conversation import OpenConversation, connect, open_conversation
from moa_client.surface.messages import ConversationFacts


def remark(text: str) -> None:
    """Writes lines to standard error; on a terminal no word is broken."""
    if sys.stderr.isatty():
        from moa_client.chat.screen import wrap_words

        text = wrap_words(text, terminal_size(sys.stderr)[0])
    print(text, file=sys.stderr, flush=True)


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """The terminal's own columns and rows, not COLUMNS and LINES, which often belong to another terminal."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        size = os.terminal_size((0, 0))
    if not size.columns or not size.lines:  # the terminal does not know its size
        size = shutil.get_terminal_size()
    return max(2, size.columns), max(2, size.lines)


async def run(
    settings: ClientSettings,
    prompt: str | None,
    line: StartLine,
    *,
    identifier: str | None = None,
    model: str | None = None,
    files: Sequence[Path] = (),
    named: Collection[str] = (),
    may_start: bool = False,
) -> None:
    """Gives one answer (to standard input if it is not a terminal, and `prompt`) or opens a chat.

    Args:
        line: reports progress until the program is ready.
        identifier: of the conversation to continue; None: a new one.
        model: that answers, by a name that /model takes; None: that of the servers in use.
        files: that go with the first question.
        named: the settings that were given; the others are the daemon's.
        may_start: start the daemon for a chat if none runs.
    """
    try:
        with interruptible_work():
            texts = [read_text_file(path) for path in files]
            question = read_question(prompt, sys.stdin, remark)
        single = question is not None
        if settings.json_events and not single:
            raise ConfigError("--json prints one answer.", hint="Give a prompt, or text on standard input.")
        async with AsyncExitStack() as stack:
            open_it = None
            if settings.daemon:
                open_it = await attach(settings, line, named=named, single=single, may_start=may_start and not single)
            if open_it is None:
                from moa_client.in_process import begin

                open_it = await begin(settings, stack, line, remark, single=single)
            conversation = await open_it(identifier, settings.system)
            line.clear()
            facts = conversation.facts
            if not facts.online and facts.absent:  # otherwise it may only be on its way
                _say_absent(settings, facts, single=single)
            view = _make_view(settings, single=single)
            keys = None if single else KeyPermission(sys.stdin.fileno(), settings.mcp_allow, view.say)
            waits = single and facts.online and not settings.offline
            settle_seconds = settings.settle_seconds if waits else 0.0
            permit = keys or unasked(settings.mcp_allow, view.say)
            chat = Chat(settings, conversation, view, open_it, permit, settle_seconds)
            chat.files = texts
            stack.push_async_callback(chat.close)
            await stack.enter_async_context(leaving_on_signals(chat.close))
            if model is not None:
                line.show(f"Asking for {model} ...")
                await chat.begin_with(model)
                line.clear()
            if question is not None:
                await _answer(chat, question)
                return
            from moa_client.chat.terminal import converse

            if identifier is not None:
                chat.show_answers()
            await converse(chat, keys.take_typed if keys is not None else str)
    except MoaError as error:
        line.clear()
        if settings.json_events:
            write_output(error_line(error))
        raise


async def attach(
    settings: ClientSettings, line: StartLine, *, named: Collection[str], single: bool, may_start: bool
) -> Opener | None:
    """What opens conversations of the daemon; None: there is none that this chat can use.

    `single`: one answer only, which is not kept; the others are `run`'s.
    """
    paths = find_paths()
    status = await find_daemon(paths)
    if status is None:
        if not may_start:
            return None
        line.show("Starting the daemon ...")
        status = await start_daemon(paths, [])
    if status.get("follows_list"):  # a daemon of an older version does not say
        named = {*named, "server"}  # another one may be in use since it was started
    addressed = with_kept(at_addresses(settings, find_servers(settings, read_book())))
    mine, theirs = addressed.shared, status["settings"]
    if others := [name for name in mine if name in named and mine[name] != theirs.get(name)]:
        line.clear()
        if not single:
            what = "a setting" if len(others) == 1 else "settings"
            remark(
                f"(The daemon runs with {what} other than this chat's: {', '.join(others)}. The chat runs without it.)"
            )
        return None

    async def open_it(identifier: str | None, system: str | None) -> OpenConversation:
        if not settings.offline:
            line.show(f"Connecting to {status['server']} ...")
        try:
            try:
                ends = await connect(paths.socket)
            except OSError:  # it has ended since
                line.show("Starting the daemon again ...")
                await start_daemon(paths, status["options"])
                ends = await connect(paths.socket)
            return await open_conversation(ends, identifier, system, single=single)
        finally:
            line.clear()

    return open_it


def _make_view(settings: ClientSettings, *, single: bool) -> View:
    if settings.json_events:
        return JsonView(write_output, remark)
    if sys.stdout.isatty():
        from moa_client.chat.page import make_page

        if (page := make_page(lambda: terminal_size(sys.stdout), write_output)) is not None:
            page.say = page.say if sys.stderr.isatty() else remark
            return page
    unverified = settings.offline or settings.standalone == "always" or not single
    # A terminal that claims no abilities may act on escape sequences anyway.
    write = (lambda text: write_output(without_controls(text))) if sys.stdout.isatty() else write_output
    return PipeView(write, remark, unverified=unverified)


async def _answer(chat: Chat, question: str) -> None:
    """Gives one answer, and says what it cost."""
    settings, conversation = chat.settings, chat.conversation
    if settings.json_events:
        write_output(ready_line(conversation.facts))
    chat.warn()
    if settings.offline:
        conversation.write_standalone()  # who wants one answer without a server has nothing to wait for
    try:
        with quiet_keys():
            answer = await chat.ask(question)
    finally:
        chat.view.close()
        if (figures := chat.follower.figures) is not None:
            remark(cost_line(figures))
    if answer.is_unsettled and not settings.offline:
        raise UnavailableError(
            "No server has verified the answer to its end.", hint="Ask again when a server is available."
        )


def _say_absent(settings: ClientSettings, facts: ConversationFacts, *, single: bool) -> None:
    """Says why there is no server, and what that means."""
    if settings.offline and not single and settings.standalone != "always":
        remark(offline_words(facts, settings.standalone))
        return
    words = "Questions wait until it is back; /standalone has a small model here answer, much worse."
    if settings.offline or settings.standalone == "always" or (facts.companion and not single):
        words = worth_words(facts)
    elif single:
        words = ""
    remark(f"{facts.absent} {words}".rstrip())
