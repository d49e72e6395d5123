"""The settings that all conversations of a daemon share; others are each surface's own. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from moa_client.settings import ClientSettings

OF_ANSWERS = (  # those that the daemon itself does not take
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "max_tokens",
    "reasoning_effort",
    "system",
    "mcp_allow",
    "json_events",
    "thinking",
    "daemon",
)
OF_ENDPOINT = (  # the daemon's own: no conversation depends on them
    "endpoint",
    "endpoint_host",
    "endpoint_port",
    "endpoint_key_file",
    "allowed_origins",
)


def shared_settings(settings: ClientSettings) -> dict[str, Any]:
    """Those that a chat and its daemon must have in common, as JSON values."""
    return {name: value for name, value in settings.json_values().items() if name not in OF_ANSWERS + OF_ENDPOINT}


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any], named: Collection[str]) -> list[str]:
    """The names of settings that differ, of those that a chat names: the others are the daemon's."""
    return [name for name in mine if name in named and mine[name] != theirs.get(name)]
