"""`moa-client completion`: completion by Tab in a shell."""

from __future__ import annotations

from moa_shared.programs.command_line import completion_command

completion = completion_command("moa-client")
