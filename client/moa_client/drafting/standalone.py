"""Writes the current answer on the device while no server decides its text: the counterpart of `drafting.online`.

State: whether the drafter has more to say, and which text the step under way continues. What the drafter writes goes to
the answer queue as provisional text. Invariant: a token that continues a text since changed is discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moa_client.conversation.answer_queue import AnswerQueue
from moa_client.conversation.jobs import Job
from moa_client.drafting.drafter_thread import DrafterThread
from moa_client.drafting.results import Wrote


class StandaloneDrafting:
    """Writes the answers of one conversation, a token at a time.

    Args:
        thread: the drafter's; None without one.
        tell: gives the drafter the text that comes next.
    """

    def __init__(
        self, answers: AnswerQueue, thread: DrafterThread | None, tell: Callable[[Sequence[int]], None]
    ) -> None:
        self._answers = answers
        self._thread = thread
        self._tell = tell
        self._has_more = True
        self._serial = 0  # of the provisional text
        self._told: tuple[int, Job] | None = None  # the serial and the job whose beginning the drafter has

    @property
    def can_write(self) -> bool:
        """Whether the device can continue the answer on its own."""
        return self._thread is not None and self._has_more

    def restart(self) -> None:
        """Called when the text that the drafter is writing after has changed."""
        self._serial += 1

    def renew(self) -> None:
        """Called when the drafter may have something to say again: for a new answer, or one that a server continues."""
        self.restart()
        self._has_more = True

    def begin(self) -> None:
        """Called when the device is on its own: the draft in flight begins the text, as it is already guessed."""
        self.restart()
        if self.can_write:
            self._answers.go_alone()

    def write_on(self) -> None:
        """Lets the drafter write the next token of the current answer."""
        job, thread = self._answers.current, self._thread
        if job is None or job.has_ended or thread is None or not self._has_more or thread.busy:
            return
        if self._told != (self._serial, job):  # it knows what it writes itself
            self._told = self._serial, job
            self._tell(self._answers.text_before(job))
        thread.write(self._serial, job.written, job.settings.sampling)

    def on_wrote(self, wrote: Wrote) -> None:
        """Takes in the drafter's token."""
        job = self._answers.current
        if job is None or job.has_ended or wrote.serial != self._serial:
            return
        if wrote.token is None:
            self._has_more = False
        else:
            self._answers.write(job, [wrote.token])
