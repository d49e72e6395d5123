"""The commands of `moa-client`, a module each, imported when one is used; what takes long to import, when it runs."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from moa_shared.programs.command_line import completion_command, config_command, settings_options
from moa_shared.programs.config import SettingOrigin, load_settings_and_origins, settings_of

from moa_client.daemon.shared_settings import OF_ANSWERS
from moa_client.settings import SECTION, ClientSettings

ALL = (*settings_of(ClientSettings), *ClientSettings.RETIRED)
config = config_command(ClientSettings, SECTION)
completion = completion_command("moa-client")


def with_settings(without: Sequence[str], *, options: bool = False) -> Callable[[Callable[..., None]], Any]:
    """Gives a command the settings, as its first argument, and an option for each.

    `without`: those that have no option. `options`: the second argument: the options that give another command line the
    same.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @settings_options(ClientSettings, SECTION, without)
        @wraps(command)
        def run(config_file: Path | None, **given: Any) -> None:
            flags = {name: given.pop(name) for name in ALL if name in given}
            settings, origins = load_settings_and_origins(ClientSettings, SECTION, flags, config_file)
            more = (given_options(settings, origins, config_file),) if options else ()
            command(settings, *more, **given)

        return run

    return decorate


def given_options(
    settings: ClientSettings, origins: Mapping[str, SettingOrigin], config_file: Path | None
) -> list[str]:
    """Options of `moa-client daemon run` in any folder, and in any environment.

    `origins`: where each of the settings comes from.
    """
    options = [] if config_file is None else ["--config", str(config_file.absolute())]
    known = settings_of(ClientSettings)
    for name, origin in origins.items():
        if origin.source not in ("command line", "environment") or name in OF_ANSWERS:
            continue
        value = getattr(settings, name)
        if isinstance(value, bool):
            options.append(known[name].flag_of(value))
        else:
            values = value if isinstance(value, tuple) else (value,)
            options += [part for each in values for part in (known[name].flag_of(), str(each))]
    return options
