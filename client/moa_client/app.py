"""The client program: opens a conversation, of the daemon or of its own, then gives one answer or opens a chat.

State: none of its own. Without a server it continues with what this device has, and says so; a single answer that
no server has verified is an error unless the user asked for it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from moa_shared.errors import CancelledAnswerError, MoaError, UnavailableError
from moa_shared.programs.entry import StartLine, write_output

from moa_client.attach import attach
from moa_client.chat.chat import Chat, Opener
from moa_client.chat.json_events import error_line, ready_line
from moa_client.chat.keys import KeyPermission, quiet_keys, unasked
from moa_client.chat.messages import offline_words, worth_words, writes_standalone
from moa_client.chat.question import TextFile, read_question, read_text_file
from moa_client.chat.signals import interruptible_work, leaving_on_signals
from moa_client.chat.views import terminal_size
from moa_client.settings import ClientSettings
from moa_client.surface.conversation import OpenConversation
from moa_client.surface.messages import ConversationFacts


def remark(text: str) -> None:
    """Writes lines to standard error; on a terminal no word is broken."""
    if sys.stderr.isatty():
        from moa_client.chat.display.word_wrap import wrap_words

        text = wrap_words(text, terminal_size(sys.stderr)[0])
    print(text, file=sys.stderr, flush=True)


async def run(
    settings: ClientSettings,
    prompt: str | None,
    line: StartLine,
    *,
    identifier: str | None = None,
    files: Sequence[Path] = (),
    named: Collection[str] = (),
    may_start: bool = False,
) -> None:
    """Gives one answer (to standard input if it is not a terminal, and `prompt`) or opens a chat.

    Args:
        line: reports progress until the program is ready.
        identifier: of the conversation to continue; None: a new one.
        files: that go with the first question.
        named: the settings that were given; the others are the daemon's.
        may_start: start the daemon for a chat if none runs.
    """
    try:
        with interruptible_work():
            texts = [read_text_file(path) for path in files]
            question = read_question(prompt, sys.stdin, remark)
        await _run(settings, question, line, identifier, texts, named=named, may_start=may_start)
    except MoaError as error:
        line.clear()
        if settings.json_events:
            write_output(error_line(error) + "\n")
        raise


async def _run(
    settings: ClientSettings,
    question: str | None,
    line: StartLine,
    identifier: str | None,
    files: Sequence[TextFile],
    *,
    named: Collection[str],
    may_start: bool,
) -> None:
    single = question is not None
    async with AsyncExitStack() as stack:
        open_it = None
        if settings.daemon:
            may_start = may_start and not single
            open_it = await attach(settings, line, remark, named=named, single=single, may_start=may_start)
        if open_it is None:
            from moa_client.in_process import begin

            open_it = await begin(settings, stack, line, remark, single=single)
        conversation = await open_it(identifier, settings.system)
        line.clear()
        chat = _chat(settings, conversation, open_it, single=single)
        chat.files = list(files)
        stack.push_async_callback(chat.close)
        await stack.enter_async_context(leaving_on_signals(chat.close))
        if settings.json_events:
            write_output(ready_line(conversation.facts) + "\n")
        if question is None:
            from moa_client.chat.terminal import converse

            if identifier is not None:
                chat.show_answers()
            await converse(chat)
            return
        chat.warn()
        if settings.offline:
            conversation.write_standalone()  # who wants one answer without a server has nothing to wait for
        try:
            with quiet_keys(conversation.write_standalone):
                answer = await chat.ask(question)
        except CancelledAnswerError:
            _end_single(chat)
            raise
        _end_single(chat)
        if answer.is_unsettled and not settings.offline:
            raise UnavailableError(
                "No server has verified the answer to its end.", hint="Ask again when a server is available."
            )


def _end_single(chat: Chat) -> None:
    """Leaves the terminal, and says what the answer cost."""
    if chat.page is not None:
        chat.page.close()
    if chat.figures is not None:
        remark(chat.figures.line())


def _chat(settings: ClientSettings, conversation: OpenConversation, open_it: Opener, *, single: bool) -> Chat:
    facts = conversation.facts
    if not facts.online and facts.absent:  # otherwise it may only be on its way
        _say_absent(settings, facts, single=single)
    waits = single and facts.online and not settings.offline
    page = None
    if not settings.json_events and sys.stdout.isatty():
        from moa_client.chat.display.page import make_page

        page = make_page(lambda: terminal_size(sys.stdout), write_output)
    say = page.say if page is not None and sys.stderr.isatty() else remark
    keys = None if single else KeyPermission(sys.stdin.fileno(), settings.mcp_allow, say)
    return Chat(
        settings,
        conversation,
        write_output,
        say,
        open_it=open_it,
        unverified=settings.offline or settings.standalone == "always" or not single,
        settle_seconds=settings.settle_seconds if waits else 0.0,
        page=page,
        permit=keys or unasked(settings.mcp_allow, say),
        take_typed=keys.take_typed if keys is not None else str,
    )


def _say_absent(settings: ClientSettings, facts: ConversationFacts, *, single: bool) -> None:
    """Says why there is no server, and what that means."""
    if (settings.offline and single) or settings.standalone == "always":
        remark(f"{facts.absent} {worth_words(facts)}")
    elif settings.offline:
        remark(offline_words(facts, writes=writes_standalone(facts, settings.standalone)))
    elif facts.companion and not single:
        remark(f"{facts.absent} Until it is back {facts.companion} on this device answers.")
    elif not single:
        remark(
            f"{facts.absent} Questions wait until it is back; /standalone has a small model here answer, much worse."
        )
    else:
        remark(facts.absent)
