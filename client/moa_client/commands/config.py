"""`moa-client config`: the settings that are in force."""

from __future__ import annotations

from moa_shared.programs.command_line import config_command

from moa_client.settings import SECTION, ClientSettings

config = config_command(ClientSettings, SECTION)
