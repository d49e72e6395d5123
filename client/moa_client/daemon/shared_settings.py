"""The settings that all conversations of a daemon share; others are each surface's own. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moa_client.conversation.answer_options import OPTION_NAMES
from moa_client.settings import ClientSettings

OF_SURFACES = (
    *OPTION_NAMES,
    "system",
    "mcp_allow",
    "json_events",
    "render",
    "thinking",
    "settle_seconds",
    "daemon",
    "daemon_dir",
    "log_file",
    "log_level",
)

OF_ENDPOINT = (  # the daemon's own: no conversation depends on them
    "endpoint",
    "endpoint_host",
    "endpoint_port",
    "endpoint_key_file",
    "allowed_origins",
    "unverified",
    "max_requests",
)


def shared_settings(settings: ClientSettings) -> dict[str, Any]:
    """Those that a chat and its daemon must have in common, as JSON values."""
    return {name: value for name, value in settings.json_values().items() if name not in OF_SURFACES + OF_ENDPOINT}


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """The names of settings that differ; a chat that names no tools takes those of its daemon."""
    return [name for name in mine if mine[name] != theirs.get(name) and (name != "mcp" or mine[name] is not None)]
