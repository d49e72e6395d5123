"""What one command line and its environment give the daemon, as options of another one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from moa_shared.programs.config import SettingOrigin, settings_of

from moa_client.daemon.shared_settings import OF_ANSWERS
from moa_client.settings import ClientSettings


def given_options(
    settings: ClientSettings, origins: Mapping[str, SettingOrigin], config_file: Path | None
) -> list[str]:
    """Options of `moa-client daemon run` in any folder, and in any environment.

    Args:
        origins: where each of the settings comes from.
    """
    options = [] if config_file is None else ["--config", str(config_file.absolute())]
    known = settings_of(ClientSettings)
    for name, origin in origins.items():
        if origin.source not in ("command line", "environment") or name in OF_ANSWERS:
            continue
        value = getattr(settings, name)
        if isinstance(value, bool):
            options.append(known[name].flag_of(value))
        elif isinstance(value, tuple):
            options += [part for each in value for part in (known[name].flag_of(), str(each))]
        else:
            options += [known[name].flag_of(), str(value)]
    return options
