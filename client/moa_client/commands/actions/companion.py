"""Keeps which companion chats and the daemon use, and says what there is."""

from __future__ import annotations

import asyncio
from pathlib import Path

from moa_shared.drafter.companion import find_companion, load_companion, recall_agreement
from moa_shared.models import ModelFiles
from moa_shared.models.sources.cache import cache_root
from moa_shared.programs.config import load_settings, settings_of
from moa_shared.programs.entry import write_output
from moa_shared.programs.machine import si_bytes
from moa_shared.programs.progress import make_progress

from moa_client.daemon.process import find_daemon, find_paths
from moa_client.device.kept_companion import read_kept, write_kept
from moa_client.device.sources import AUTO, find_last_target
from moa_client.servers.book import at_addresses, find_servers, read_book
from moa_client.settings import SECTION, ClientSettings

NOTHING = "No companion: while no server answers, the drafter writes a few words. `moa-client companion set default`\n"


def choose(model: str) -> None:
    """Keeps a companion, once it is here and can be used."""
    settings, progress = _settings(), make_progress()
    spec = settings_of(ClientSettings)["companion"].read(model, Path())
    if spec == AUTO:
        write_kept(spec)
        write_output("From now on: the companion that the server offers, fetched once.\n")
    else:
        files = find_companion(spec, settings.cache_dir, progress)
        target = find_last_target(settings, progress)
        load_companion(files, target or files, settings.cache_dir, progress)  # its weights are packed here, once
        write_kept(spec)
        write_output(f"From now on: {_words(files, target, settings)}\n")
    _tell_daemon(settings)


def forget() -> None:
    """Has chats and the daemon do without a companion."""
    write_kept("")
    write_output("From now on: no companion.\n")
    _tell_daemon(_settings())


def show() -> None:
    """Says which companion is kept, what it is worth here so far, and its size."""
    settings, kept = _settings(), read_kept()
    if not kept:
        write_output(NOTHING)
    elif kept == AUTO:
        write_output("The companion that the server offers; `moa-client doctor` says which.\n")
    else:
        progress = make_progress()
        files = find_companion(kept, settings.cache_dir, progress)
        write_output(f"{_words(files, find_last_target(settings, progress), settings)}\n")


def _words(files: ModelFiles, target: ModelFiles | None, settings: ClientSettings) -> str:
    size = si_bytes(sum(path.stat().st_size for path in files.weights))
    words = f"{files.target_id}, {size}"
    if target is None:
        return f"{words}; which server's model it stands in for is known after the first chat."
    agreement = recall_agreement(cache_root(settings.cache_dir), files.fingerprint, target.fingerprint)
    if not agreement.tokens:
        return f"{words}; beside {target.target_id} nothing is counted yet."
    share = f"{100 * agreement.right / agreement.tokens:.0f} % of {agreement.tokens} tokens"
    return f"{words}; beside {target.target_id} it would have said {share}."


def _tell_daemon(settings: ClientSettings) -> None:
    if asyncio.run(find_daemon(find_paths(settings.daemon_dir))) is not None:
        write_output("The daemon that is running takes it in when it starts again: moa-client daemon restart\n")


def _settings() -> ClientSettings:
    settings = load_settings(ClientSettings, SECTION, {})
    return at_addresses(settings, find_servers(settings, read_book()))
