"""The commands of `moa-client`, a module each, imported when one is used; what takes long to import, when it runs."""

from moa_shared.programs.command_line import config_command

from moa_client.settings import SECTION, ClientSettings

config = config_command(ClientSettings, SECTION)
