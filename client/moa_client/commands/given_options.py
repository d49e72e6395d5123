"""The options of one command line, as another one takes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moa_shared.programs.config import settings_of

from moa_client.settings import ClientSettings


def given_options(settings: ClientSettings, flags: Mapping[str, Any], config_file: Path | None) -> list[str]:
    """The options of a command line, for another one in any folder.

    Args:
        settings: what the options were read as.
    """
    options = [] if config_file is None else ["--config", str(config_file.absolute())]
    known = settings_of(ClientSettings)
    for name in (name for name, given in flags.items() if given is not None):
        value = getattr(settings, name)
        if isinstance(value, bool):
            options.append(known[name].flag_of(value))
        elif isinstance(value, tuple):
            options += [part for each in value for part in (known[name].flag_of(), str(each))]
        else:
            options += [known[name].flag_of(), str(value)]
    return options
