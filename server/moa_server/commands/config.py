"""`moa-server config`."""

from moa_shared.programs.command_line import completion_command, config_command

from moa_server.settings import SECTION, ServerSettings

config = config_command(ServerSettings, SECTION)


completion = completion_command("moa-server")
