"""The client program: connects, loads what is needed, then gives one answer or opens a chat.

State: none of its own. Without a server it continues with what this device has, and says so; a single answer that
no server has verified is an error unless the user asked for it.
"""

from __future__ import annotations

import sys
import time
from contextlib import AsyncExitStack
from functools import partial

from moa_shared.errors import CancelledAnswerError, ConfigError, DataError, MoaError, NotFoundError, UnavailableError
from moa_shared.programs.output import write_output
from moa_shared.programs.progress import make_progress
from moa_shared.protocol.memory_codec import Codec
from moa_shared.text.word_wrap import wrap_words

from moa_client.chat.chat import Chat
from moa_client.chat.display.page import make_page
from moa_client.chat.json_events import error_line, ready_line
from moa_client.chat.keys import quiet_keys
from moa_client.chat.signals import interruptible_work, leaving_on_signals
from moa_client.chat.start_line import StartLine
from moa_client.chat.views import terminal_size
from moa_client.conversation.events import LinkState
from moa_client.device.heap import trim_heap
from moa_client.device.loading import load_device
from moa_client.device.refitting import refit
from moa_client.device.sources import Sources, find_local_sources, find_sources, means_served
from moa_client.drafting.alone import READING_SPEED, AloneRule
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.channel import Link, connect
from moa_client.settings import ClientSettings

DESCRIBE_ROUND_TRIPS = 2  # of the first call; one is for the connection


def remark(text: str) -> None:
    """Writes lines to standard error; on a terminal no word is broken."""
    if sys.stderr.isatty():
        text = wrap_words(text, terminal_size(sys.stderr)[0])
    print(text, file=sys.stderr, flush=True)


async def run(settings: ClientSettings, prompt: str | None, line: StartLine) -> None:
    """Connects, loads, then gives one answer (`prompt`, or standard input if it is not a terminal) or opens a chat.

    Args:
        line: reports progress until the program is ready.

    Raises:
        MoaError: why it cannot continue.
    """
    try:
        await _run(settings, _read_question(prompt), line)
    except MoaError as error:
        line.clear()
        if settings.json_events:
            write_output(error_line(error) + "\n")
        raise


async def _run(settings: ClientSettings, question: str | None, line: StartLine) -> None:
    async with AsyncExitStack() as stack:
        link = await stack.enter_async_context(
            connect(settings.server, settings.connect_seconds, settings.silence_seconds)
        )
        chat = await _begin(settings, link, line, single=question is not None)
        stack.push_async_callback(chat.engine.close)
        await stack.enter_async_context(leaving_on_signals(chat.engine.connection.leave))
        if settings.json_events:
            online = chat.engine.status.state is not LinkState.OFFLINE
            device = chat.device
            ready = ready_line(
                device.files.target_id,
                settings.server,
                online=online,
                execution=device.execution,
                choice=device.choice,
            )
            write_output(ready + "\n")
        if question is not None:
            chat.warn()
            with quiet_keys(chat.engine.write_alone):
                finished = await chat.ask(question)
            if chat.page is not None:
                chat.page.close()
            remark(chat.engine.figures.line())
            if not finished:
                raise CancelledAnswerError("The answer was stopped.")
            if chat.engine.unsettled and not settings.offline:
                raise UnavailableError(
                    "No server has verified the answer to its end.", hint="Ask again when a server is available."
                )
        else:
            from moa_client.chat.terminal import converse

            await converse(chat)


def _read_question(prompt: str | None) -> str | None:
    """The prompt, or standard input if it is not a terminal; None for a chat."""
    question = prompt
    try:
        if question is None and not sys.stdin.isatty():
            question = sys.stdin.read()
        if question is not None:
            question.encode()  # an argument that is not UTF-8 arrives as surrogates
    except UnicodeError:
        raise DataError("The prompt is not text in UTF-8.", hint="Convert it first, for example with iconv.") from None
    if question is not None and not question.strip():
        raise ConfigError("The prompt is empty.", hint="Give a prompt as an argument or on standard input.")
    return question


async def _begin(settings: ClientSettings, link: Link, line: StartLine, *, single: bool) -> Chat:
    """Describes, loads and checks."""
    progress = make_progress()
    absent: UnavailableError | None = None
    served = None
    rtt_ms: float | None = None
    if not settings.offline:
        line.show(f"Connecting to {settings.server} ...")
        try:
            began = time.monotonic()
            served = await link.describe()
            rtt_ms = 1e3 * (time.monotonic() - began) / DESCRIBE_ROUND_TRIPS
        except UnavailableError as error:
            absent = error
    line.clear()
    with interruptible_work():
        if served is not None:
            sources = await find_sources(settings, link, served, progress)
        else:
            sources = _find_alone(settings, absent)
        line.show("Loading the drafter ...")
        device = load_device(settings, sources.served, progress, sources, rtt_ms)
    trim_heap()
    line.clear()
    mode = drafting_settings(settings, is_read=not single and sys.stdout.isatty())
    vocab_size = int(device.files.config["vocab_size"])
    engine = ClientEngine(
        link,
        device,
        vocab_size,
        Codec[settings.codec.upper()],
        mode,
        offline=served is None,
        refit=None if single else partial(refit, settings, link),  # another drafter begins with the next question
    )
    if served is None:
        why = absent.message if absent is not None else "You are offline."
        if settings.offline or settings.alone == "always":
            remark(f"{why} A small model on this device answers instead, much worse than {device.files.target_id}.")
        elif not single:
            remark(f"{why} Questions wait until it is back; /alone has a small model here answer, much worse.")
        else:
            remark(why)
    if absent is not None:
        engine.go_online()
    settle_seconds = settings.settle_seconds if single and absent is None else 0.0
    page = None if settings.json_events else make_page(lambda: terminal_size(sys.stdout), write_output)
    return Chat(
        settings,
        engine,
        write_output,
        page.say if page is not None and sys.stderr.isatty() else remark,
        unverified=settings.offline or settings.alone == "always" or not single,
        settle_seconds=settle_seconds,
        row_ms=sources.served.row_ms,
        page=page,
    )


def drafting_settings(settings: ClientSettings, *, is_read: bool) -> DraftingSettings:
    """How to draft, and how to write without a server.

    Args:
        is_read: by a person, as it comes.
    """
    leave_seconds = settings.silence_seconds if is_read else settings.alone_seconds
    alone = AloneRule(
        settings.alone,
        settings.alone_chance,
        settings.alone_tokens,
        READING_SPEED if is_read else 0.0,
        1e3 * settings.alone_seconds,
        1e3 * leave_seconds,
    )
    return DraftingSettings(
        settings.drafting,
        settings.rounds,
        settings.run_ahead,
        settings.reconcile,
        settings.mode == "tree",
        alone,
    )


def _find_alone(settings: ClientSettings, absent: UnavailableError | None) -> Sources:
    """What this device can continue with on its own.

    Raises:
        MoaError: there is nothing; says why the server is unavailable, if it was asked.
    """
    writes = settings.drafter not in ("lookup", "none")
    sources = find_local_sources(settings, make_progress()) if writes else None
    if sources is not None and (sources.drafters or not means_served(settings)):
        return sources
    raise absent or NotFoundError(
        "There is no drafter on this device to write with.", hint="Connect to a server once to fetch one."
    )
