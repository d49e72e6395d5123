"""The answers still wanted: the one the user waits for, and those before it that ended without the server.

Pure. The front job is what the `Conversation` is about; jobs after it build on provisional text and wait until the
front is verified. Invariant: `written` is what a reader sees as provisional.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from moa_shared.protocol.finish_rule import AnswerSettings, Finish

Turn = Callable[[Sequence[int]], Sequence[int]]  # the tokens to append to a conversation so that an answer begins


@dataclass(eq=False, slots=True)
class Job:
    """One answer.

    Args:
        written: provisional tokens, after what is committed of this answer.
        finish: why the answer has ended without the server; UNFINISHED: it has not.
        asked: the question's tokens when the answer was begun on provisional text.
        verified: tokens that the server has decided since the user learned that the answer has ended.
        corrected: whether provisional text was withdrawn since then.
        shown: how many tokens were shown as provisional; `kept`: of these, how many have been committed.
        left: the user waits for it no longer, although it has not ended: the server continues it when it is back.
    """

    turn: Turn
    settings: AnswerSettings
    written: list[int] = field(default_factory=list)
    finish: Finish = Finish.UNFINISHED
    asked: list[int] = field(default_factory=list)
    verified: list[int] = field(default_factory=list)
    corrected: bool = False
    shown: int = 0
    kept: int = 0
    left: bool = False

    @property
    def has_ended(self) -> bool:
        return self.left or self.finish is not Finish.UNFINISHED


class Jobs:
    """The wanted answers in order; the last one may be the user's current one."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job: Job) -> bool:
        return job in self._jobs

    @property
    def front(self) -> Job | None:
        return self._jobs[0] if self._jobs else None

    def append(self, job: Job) -> None:
        self._jobs.append(job)

    def pop_front(self) -> None:
        self._jobs.popleft()

    def remove(self, job: Job) -> None:
        self._jobs.remove(job)

    def keep(self, count: int) -> None:
        """Drops all but the first `count` of them."""
        while len(self._jobs) > count:
            self._jobs.pop()

    def clear(self) -> None:
        self._jobs.clear()

    def text_before(self, job: Job, committed: Sequence[int]) -> list[int]:
        """The text that `job` continues: what is committed, and what the jobs before it have written."""
        text = list(committed)
        for earlier in self._jobs:
            if earlier is not self._jobs[0]:
                text += earlier.asked
            if earlier is job:
                break
            text += earlier.written
        return text
