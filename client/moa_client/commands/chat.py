"""`moa-client chat`: a chat, or one answer."""

from pathlib import Path
from typing import Any

import click
from moa_shared.errors import ConfigError
from moa_shared.programs.command_line import settings_options, text
from moa_shared.programs.config import load_settings_and_origins
from moa_shared.programs.entry import StartLine, close_output

from moa_client.settings import OF_ANSWERS, OF_ENDPOINT, SECTION, ClientSettings


@click.command()
@click.argument("prompt", required=False)
@settings_options(ClientSettings, SECTION, OF_ENDPOINT)
@click.option("-c", "--continue", "go_on", is_flag=True, help="Continue the newest conversation.")
@click.option(
    "--conversation", metavar="ID", type=text, help="Continue this one (`moa-client history list` shows them)."
)
@click.option("--ask", metavar="MODEL", type=text, help="Have another model of your servers answer, as /model does.")
@click.option(
    "--file",
    "files",
    metavar="FILE",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A text file that goes with the question, of a chat with its first; may be repeated.",
)
def chat(
    prompt: str | None,
    go_on: bool,
    conversation: str | None,
    ask: str | None,
    files: tuple[Path, ...],
    config_file: Path | None,
    **flags: Any,
) -> None:
    """Chat with a server's model; with PROMPT, or text on standard input, or both, print one answer.

    The answer goes to standard output, a line of figures to standard error. Every option can also be set as
    MOA_CLIENT_<OPTION> in the environment, or in the [client] table of a TOML file; options come first, then the
    environment, then the file. `moa-client config` shows what is in force.
    """
    settings, origins = load_settings_and_origins(ClientSettings, SECTION, flags, config_file)
    line = StartLine()
    line.show("Starting ...")
    import asyncio

    from moa_shared.programs.run_loop import make_runner
    from moa_shared.tracing import traced

    from moa_client.app import run
    from moa_client.logs import configure_log, log

    of_daemon = (each for each, value in flags.items() if value not in (None, ()) and each not in OF_ANSWERS)
    may_start = config_file is None and not any(of_daemon)
    named = {each for each, origin in origins.items() if origin.source != "default"}
    configure_log()
    name = conversation or ("last" if go_on else None)
    identifier = None if name is None else _find_conversation(settings, name)
    try:
        with traced(settings.tracing, "moa-client", log.warning), make_runner() as runner:
            of_chat = run(
                settings, prompt, line, identifier=identifier, model=ask, files=files, named=named, may_start=may_start
            )
            runner.run(of_chat)
    except BrokenPipeError:  # the reader has had enough; nothing may be written at exit either
        close_output()
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _find_conversation(settings: ClientSettings, name: str) -> str:
    from moa_client.commands.history import opened

    if not settings.history:
        raise ConfigError("Conversations are not kept here: --no-history.", hint="Leave out one of the two options.")
    with opened() as store:
        return store.find(name)
