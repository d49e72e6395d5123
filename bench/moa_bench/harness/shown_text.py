"""What a reader sees of an answer, rebuilt from the client's events: was text lost or doubled, and when was it shown?

Pure: clock readings are arguments. State: committed and provisional tokens on the screen. Invariant: an event that does
not fit what is on the screen is remembered as a contradiction.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from moa_client.conversation.events import Committed, Corrected, Ended, Event, Provisional


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment at which text was shown or taken back."""

    at_s: float  # since the question
    length: int  # tokens on the screen then
    committed: int  # of them, how many the target has decided
    is_new: bool  # whether there is more text than before


class AnswerScreen:
    """The text of one answer as its reader sees it."""

    def __init__(self) -> None:
        self.committed: list[int] = []
        self.provisional: list[int] = []
        self.moments: list[Moment] = []
        self.contradictions = 0
        self.ended_alone = False

    def on_event(self, event: Event, at_s: float) -> None:
        """Takes in an event of the client."""
        before = len(self.committed) + len(self.provisional)
        if isinstance(event, Committed):
            confirmed = event.tokens[: event.confirmed]
            self.contradictions += self.provisional[: event.confirmed] != list(confirmed)
            del self.provisional[: event.confirmed]
            self.contradictions += len(event.tokens) > event.confirmed and bool(self.provisional)
            self.committed += event.tokens
        elif isinstance(event, Provisional):
            self.provisional += event.tokens
        elif isinstance(event, Corrected):
            self.contradictions += event.dropped != len(self.provisional)
            self.provisional.clear()
        elif isinstance(event, Ended):
            self.ended_alone = event.provisional
            return
        else:
            return
        length = len(self.committed) + len(self.provisional)
        self.moments.append(Moment(at_s, length, len(self.committed), length > before))

    @property
    def decided_s(self) -> list[float]:
        """When the target had decided more of the text: the times of verdicts."""
        before = [0, *(moment.committed for moment in self.moments)]
        return [each.at_s for count, each in zip(before, self.moments, strict=False) if each.committed > count]

    def fits(self, answer: Sequence[int]) -> bool:
        """Whether the screen shows this final answer: all of it, or its committed part if that is where it ended."""
        if self.contradictions:
            return False
        if self.ended_alone:
            return list(answer[: len(self.committed)]) == self.committed
        return list(answer) == self.committed and not self.provisional
