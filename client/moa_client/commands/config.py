"""`moa-client config`: the settings that are in force; `moa-client completion`: completion by Tab in a shell."""

from __future__ import annotations

from moa_shared.programs.command_line import completion_command, config_command

from moa_client.settings import SECTION, ClientSettings

config = config_command(ClientSettings, SECTION)
completion = completion_command("moa-client")
