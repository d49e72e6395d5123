"""The calls of an answer as the reader of a family's form finds them. Pure.

State: the call that is being read. Invariant: a call starts once it is certain that it is one, with a name; its
arguments are held until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moa_client.tools.reading.json_scanner import Mismatch
from moa_client.tools.reading.pieces import CallArguments, CallEnded, CallStarted, Piece
from moa_client.tools.tool import Tool, is_name


class Call:
    """One call that is being read."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._held: list[str] = []
        self.name = ""
        self.index = calls.started
        self.has_started = False

    def set_name(self, name: str) -> None:
        """Takes the name.

        Raises:
            Mismatch: no tool can have it; where the form is not certain, none of those offered has.
        """
        if self.name or not is_name(name) or not (self._calls.is_certain or name in self._calls.tools):
            raise Mismatch
        self.name = name
        self._release()

    def write(self, text: str) -> None:
        """Takes text of the arguments."""
        self._held.append(text)
        self._release()

    def end(self) -> None:
        """Ends the call.

        Raises:
            Mismatch: it has no name; where the form is not certain, no arguments.
        """
        if not self.has_started:
            if not self.name or not self._calls.is_certain:
                raise Mismatch
            self.write("{}")
        self._calls.on_ended(self)

    def _release(self) -> None:
        if not self.name or not self._held:
            return
        if not self.has_started:
            self.has_started = True
            self._calls.on_started(self)
        self._calls.pieces.append(CallArguments(self.index, "".join(self._held)))
        self._held.clear()


class Calls:
    """All calls of an answer.

    Args:
        tools: that were offered.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools: Mapping[str, Tool] = {tool.name: tool for tool in tools}
        self.pieces: list[Piece] = []
        self.started = 0
        self.current: Call | None = None
        self.is_certain = True  # whether what opened the markup opens nothing but calls
        self.only_markup = False  # whether all since the last call's end is markup, which may be dropped
        self.has_settled = False  # whether all text so far is accounted for; the reader takes note and clears it

    def begin(self) -> Call:
        """Begins a call."""
        self.current = Call(self)
        self.only_markup = False
        return self.current

    def settle(self) -> None:
        """Drops the text so far, which is markup."""
        self.has_settled = self.only_markup = True

    def on_started(self, call: Call) -> None:
        """Tells of a call's beginning."""
        self.started += 1
        self.pieces.append(CallStarted(call.index, call.name))

    def on_ended(self, call: Call) -> None:
        """Tells of a call's end."""
        self.current = None
        self.pieces.append(CallEnded(call.index))
        self.settle()
