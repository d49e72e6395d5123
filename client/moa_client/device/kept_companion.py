"""The companion that this device's user has chosen: companion.toml in the user's configuration folder.

State: the file. Where it is not there, nobody has chosen yet, and a chat offers one, once.
"""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

from moa_shared.errors import ConfigError
from moa_shared.programs.atomic import write_private

from moa_client.settings import ClientSettings

NONE = "none"  # as --companion: none, whatever is kept


def kept_path() -> Path:
    import platformdirs

    return platformdirs.user_config_path("moa", appauthor=False) / "companion.toml"


def read_kept() -> str | None:
    """The choice, as --companion names it; empty: none is wished for; None: nobody has chosen."""
    path = kept_path()
    try:
        companion = tomllib.loads(path.read_text(encoding="utf-8-sig")).get("companion")
        if isinstance(companion, str):
            return companion
        raise ValueError("it must hold a text `companion`")
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as error:  # of TOML and UTF-8 too
        raise ConfigError(f"{path} cannot be read: {error}.", hint="Correct it, or delete the file.") from None


def write_kept(companion: str) -> None:
    """Keeps a choice; empty: none."""
    path = kept_path()
    try:
        words = json.dumps(companion, ensure_ascii=False)
        write_private(path, f"# Written by `moa-client companion`.\ncompanion = {words}\n".encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.", hint="") from None


def with_kept(settings: ClientSettings) -> ClientSettings:
    """The same settings, with the companion that is kept where they name none."""
    return replace(settings, companion="" if settings.companion == NONE else settings.companion or read_kept() or "")
