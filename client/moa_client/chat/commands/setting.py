"""What a chat can set for its next answers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from moa_shared.programs.config import load_settings

from moa_client.settings import SECTION, ClientSettings

_OPEN = {"system": "the model's own", "reasoning_effort": "the model's own"}


def change(settings: ClientSettings, name: str, value: str) -> ClientSettings:
    """The settings with another value.

    Args:
        value: as typed; `default`: what it is without being set.
    """
    given = {} if value == "default" else {name: (value,) if name == "stop" else value}
    loaded = load_settings(ClientSettings, SECTION, given, environment={}, shown=str)
    return replace(settings, **{name: getattr(loaded, name)})


def shown(settings: ClientSettings, name: str, sampling: Mapping[str, float]) -> str:
    """A value in words.

    Args:
        sampling: what counts where nothing is set, by name.
    """
    value = getattr(settings, name)
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(repr, value)) or "not set"
    if value is None and name in sampling:
        return f"{sampling[name]:g} (the default)"
    if value is None:
        return _OPEN.get(name, "a new one for each question")
    return f"{value:g}" if isinstance(value, float) else str(value)
