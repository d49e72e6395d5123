"""`moa-server config`."""

from __future__ import annotations

from moa_shared.programs.command_line import config_command

from moa_server.settings import SECTION, ServerSettings

config = config_command(ServerSettings, SECTION)
