"""`moa-client companion`: chooses the small model that writes on this device while no server answers."""

import asyncio
from pathlib import Path

import click
from moa_shared.programs.command_line import text
from moa_shared.programs.config import load_settings, settings_of
from moa_shared.programs.entry import write_output

from moa_client.servers.book import at_addresses, find_servers, read_book
from moa_client.settings import SECTION, ClientSettings, read_kept, write_kept

AUTO = "auto"
NOTHING = "No companion: while no server answers, the drafter writes a few words. `moa-client companion set default`\n"


@click.group(invoke_without_command=True)
@click.pass_context
def companion(context: click.Context) -> None:
    """Choose the small model that writes here while no server answers; alone, say which, what it is worth, its size."""
    if context.invoked_subcommand is not None:
        return
    if not (kept := read_kept()):
        write_output(NOTHING)
    elif kept == AUTO:
        write_output("The companion that the server offers; `moa-client doctor` says which.\n")
    else:
        write_output(_found(kept, load=False))


@companion.command("set")
@click.argument("model", metavar="default|auto|NAME|FILE", type=text)
def set_(model: str) -> None:
    """Choose it for all chats and the daemon: one that `moa-server models` lists, a file, a folder or a hub id.

    qwen3-0.6b and other names of docs/models.md are fetched. auto is the one that the server offers; default is a
    demonstration of 135 million weights.
    """
    spec = settings_of(ClientSettings)["companion"].read(model, Path())
    words = "the companion that the server offers, fetched once.\n" if spec == AUTO else _found(spec, load=True)
    _keep(spec, words)


@companion.command()
def off() -> None:
    """Do without, and be offered none."""
    _keep("", "no companion.\n")


def _keep(spec: str, words: str) -> None:
    from moa_client.daemon.process import find_daemon, find_paths

    write_kept(spec)
    write_output(f"From now on: {words}")
    if asyncio.run(find_daemon(find_paths())) is not None:
        write_output("The daemon that is running takes it in when it starts again: moa-client daemon restart\n")


def _found(spec: str, *, load: bool) -> str:
    """A companion's size and worth, in words, once it is here. `load`: check that it can be used."""
    from moa_shared.drafter.companion import find_companion, load_companion, recall_agreement
    from moa_shared.models.storage.cache import cache_root
    from moa_shared.programs.machine import si_bytes
    from moa_shared.programs.progress import make_progress

    from moa_client.device.sources import find_last_target

    settings, progress = _settings(), make_progress()
    files = find_companion(spec, settings.cache_dir, progress)
    target = find_last_target(settings, progress)
    if load:
        load_companion(files, target or files, settings.cache_dir, progress)  # its weights are packed here, once
    words = f"{files.target_id}, {si_bytes(sum(path.stat().st_size for path in files.weights))}"
    if target is None:
        return f"{words}; which server's model it stands in for is known after the first chat.\n"
    agreement = recall_agreement(cache_root(settings.cache_dir), files.fingerprint, target.fingerprint)
    if not agreement.tokens:
        return f"{words}; beside {target.target_id} nothing is counted yet.\n"
    share = f"{100 * agreement.right / agreement.tokens:.0f} % of {agreement.tokens} tokens"
    return f"{words}; beside {target.target_id} it would have said {share}.\n"


def _settings() -> ClientSettings:
    settings = load_settings(ClientSettings, SECTION, {})
    return at_addresses(settings, find_servers(settings, read_book()))
