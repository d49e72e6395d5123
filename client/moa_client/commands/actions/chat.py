"""A chat, or one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

from moa_shared.errors import ConfigError
from moa_shared.programs.entry import StartLine, close_output
from moa_shared.programs.run_loop import make_runner
from moa_shared.tracing import traced

from moa_client.app import run
from moa_client.logs import configure_log, log_traces
from moa_client.settings import ClientSettings


def chat(
    settings: ClientSettings,
    prompt: str | None,
    line: StartLine,
    conversation: str | None,
    *,
    files: Sequence[Path],
    named: Collection[str],
    may_start: bool,
) -> None:
    """Chats, or prints one answer.

    Args:
        line: reports progress until the program is ready.
        conversation: to continue, as the user names it; None: a new one.
        files: that go with the first question.
        named: the settings that were given; the others are the daemon's.
        may_start: start the daemon for a chat if none runs.
    """
    configure_log(settings.log_file)
    identifier = None if conversation is None else _find_conversation(settings, conversation)
    try:
        with traced(settings.tracing, "moa-client", log_traces), make_runner() as runner:
            started = run(settings, prompt, line, identifier=identifier, files=files, named=named, may_start=may_start)
            runner.run(started)
    except BrokenPipeError:  # the reader has had enough; nothing may be written at exit either
        close_output()
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _find_conversation(settings: ClientSettings, name: str) -> str:
    """The identifier of a conversation."""
    from moa_client.history.store import HistoryStore  # a new chat starts without the database

    if not settings.history:
        raise ConfigError("Conversations are not kept here: --no-history.", hint="Leave out one of the two options.")
    store = HistoryStore(settings.history_dir)
    try:
        return store.find(name)
    finally:
        store.close()
