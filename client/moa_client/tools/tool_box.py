"""Where the tools of conversations come from, as a conversation knows it. Pure: a protocol alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from moa_client.tools.tool import AnsweredCall, Tool, ToolCall


class ToolBox(Protocol):
    """Tools that can be run."""

    @property
    def tools(self) -> Sequence[Tool]:
        """Those that there are."""
        ...

    @property
    def remarks(self) -> Sequence[str]:
        """What a user should know of them, one sentence each, such as which could not be had."""
        ...

    def server_of(self, tool: str, server: str = "") -> str:
        """The name of the server that has a tool; empty: none has.

        Args:
            server: whose tool it has to be; empty: anyone's.
        """
        ...

    async def run(self, call: ToolCall, server: str = "") -> AnsweredCall:
        """Runs a call; whatever goes wrong is its answer. Cancelling this cancels the call.

        Args:
            server: as above.
        """
        ...
