"""`moa-client chat`: a chat, or one answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moa_shared.programs.command_line import settings_options, text

from moa_client.daemon.shared_settings import OF_ENDPOINT
from moa_client.settings import SECTION, ClientSettings

if TYPE_CHECKING:
    from collections.abc import Mapping


@click.command()
@click.argument("prompt", required=False)
@settings_options(ClientSettings, SECTION, OF_ENDPOINT)
@click.option("-c", "--continue", "go_on", is_flag=True, help="Continue the newest conversation.")
@click.option(
    "--conversation", metavar="ID", type=text, help="Continue this one (`moa-client history list` shows them)."
)
def chat(prompt: str | None, go_on: bool, conversation: str | None, config_file: Path | None, **flags: Any) -> None:
    """Chat with a server's model; with PROMPT, or text on standard input, or both, print one answer.

    The answer goes to standard output, a line of figures to standard error. Every option can also be set as
    MOA_CLIENT_<OPTION> in the environment, or in the [client] table of a TOML file; options come first, then the
    environment, then the file. `moa-client config` shows what is in force.
    """
    from moa_shared.programs.config import load_settings
    from moa_shared.programs.start_line import StartLine

    from moa_client.logs import configure_log, log_traces

    settings = load_settings(ClientSettings, SECTION, flags, config_file)
    configure_log(settings.log_file, settings.log_level)
    line = StartLine()
    line.show("Starting ...")
    import asyncio

    from moa_shared.programs.output import close_output
    from moa_shared.programs.run_loop import make_runner
    from moa_shared.tracing.telemetry import traced

    from moa_client.app import run

    identifier = _find_conversation(settings, conversation or ("last" if go_on else None))
    may_start = config_file is None and not _given_of_daemon(flags)
    try:
        with traced(settings.tracing, "moa-client", log_traces), make_runner() as runner:
            runner.run(run(settings, prompt, line, identifier=identifier, may_start=may_start))
    except BrokenPipeError:  # the reader has had enough; nothing may be written at exit either
        close_output()
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _given_of_daemon(flags: Mapping[str, Any]) -> bool:
    """Whether an option says how the daemon should be, rather than this chat."""
    from moa_client.daemon.shared_settings import OF_SURFACES

    return any(value not in (None, ()) and name not in OF_SURFACES for name, value in flags.items())


def _find_conversation(settings: ClientSettings, name: str | None) -> str | None:
    """The identifier of the conversation that a user means; None: a new one."""
    if name is None:
        return None
    from moa_shared.errors import ConfigError

    from moa_client.history.store import HistoryStore

    if not settings.history:
        raise ConfigError("Conversations are not kept here: --no-history.", hint="Leave out one of the two options.")
    store = HistoryStore(settings.history_dir)
    try:
        return store.find(name)
    finally:
        store.close()
