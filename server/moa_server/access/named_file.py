"""Which file of keys a server with some configuration reads, so that no command changes another one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moa_shared.errors import ConfigError
from moa_shared.programs.config import SettingOrigin, load_settings_and_origins

from moa_server.settings import SECTION, ServerSettings


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file of keys, and what names it."""

    path: Path
    origin: SettingOrigin

    def words(self) -> str:
        """For people."""
        return f"The file of keys is {self.path} (from {self.origin.name})."


def find_key_file(config_file: Path | None, named: Path | None = None) -> NamedFile:
    """The file of keys of the configuration in force.

    Args:
        config_file: in force; None: there is none.
        named: with --keys-file.

    Raises:
        NotFoundError, ConfigError: the configuration cannot be read, or names no file of keys.
    """
    settings, origins = load_settings_and_origins(ServerSettings, SECTION, {"keys_file": named}, config_file)
    if settings.keys_file is not None:
        return NamedFile(settings.keys_file, origins["keys_file"])
    if config_file is None:
        raise ConfigError(
            "No configuration of a server was found, so it is not known which file of keys it reads.",
            hint="Make one: moa-server setup HOST. Or name your server's: --config FILE, or --keys-file FILE.",
        )
    raise ConfigError(
        f"{config_file} names no file of keys, so a server with it asks for no keys.",
        hint='Write keys_file = "FILE" there, or name a file with --keys-file FILE.',
    )
