"""The answers of one conversation, and the events for their reader: committed, provisional, corrected, ended.

Pure. State: the conversation, the jobs, the one that the user waits for, and events not yet fetched. Invariant: the
events add up to what the conversation and the front job's `written` hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from moa_shared.errors import InternalError, MoaError, ProtocolError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish, FinishRule
from moa_shared.protocol.messages import Ask
from moa_shared.sampling.settings import Sampling, TokenChances

from moa_client.conversation import events
from moa_client.conversation.answer_text import WORTH_KEEPING
from moa_client.conversation.conversation import Conversation, ConversationState, Job, Phase, Turn
from moa_client.conversation.events import Provenance


@dataclass(frozen=True, slots=True)
class EndRule:
    """What ends a standalone answer, apart from the settings. `decode`: text of some tokens, for stop strings."""

    end_of_text: frozenset[int]
    context_tokens: int
    decode: Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class WithdrawnAnswer:
    """An answer as it was before a server has corrected the part of it that this device had written.

    Args:
        turns: of the conversation, the last one with it.
        tokens: all of it; `writers`: of each.
        finish: with which it had ended; CANCELLED: it had not.
    """

    turns: int
    tokens: tuple[int, ...]
    writers: tuple[Provenance, ...]
    finish: Finish


class AnswerQueue:
    """The open answers of one conversation, in order."""

    def __init__(self, conversation: Conversation, end_rule: EndRule) -> None:
        self.conversation = conversation
        self.current: Job | None = None
        self.events: deque[events.Event] = deque()
        self._jobs: deque[Job] = deque()
        self._withdrawn: WithdrawnAnswer | None = None  # the newest one, until the next question
        self.end_rule = end_rule

    @property
    def front(self) -> Job | None:
        return self._jobs[0] if self._jobs else None

    @property
    def unsettled(self) -> int:
        """Number of answers that ended without the server and are not verified yet."""
        return len(self._jobs) - (self.current is not None)

    @property
    def withdrawn(self) -> WithdrawnAnswer | None:
        """The newest answer as it was before it was corrected; None: it was not, or only a few words of it."""
        withdrawn = self._withdrawn
        is_newest = withdrawn is not None and withdrawn.turns == len(self.conversation.turns) and not self.unsettled
        return withdrawn if is_newest else None

    @property
    def current_is_front(self) -> bool:
        return self.current is not None and self.current is self.front

    # ------------------------------------------------------------ questions

    def begin(self, turn: Turn, settings: AnswerSettings) -> Ask | None:
        """Begins a new question; what to ask a server, if nothing before it is unsettled.

        If `turn` raises, everything is as it was.
        """
        job = Job(turn, settings)
        self._jobs.append(job)
        self._withdrawn = None
        ask = None
        try:
            if self.front is job:
                ask = self.conversation.ask(list(turn(self.conversation.tokens)), settings)
            else:
                job.asked = list(turn(self.text_before(job)))
        except BaseException:
            self._jobs.remove(job)
            raise
        self.current = job
        return ask

    def go_on(self, settings: AnswerSettings) -> Ask:
        """Continues the newest answer, which has ended; what to ask a server."""
        if self.front is not None:
            raise ProtocolError("settled answers", f"{len(self._jobs)} that are not")
        ask = self.conversation.go_on(settings)
        self.current = Job(lambda _: (), settings)
        self._jobs.append(self.current)
        return ask

    def ask_front(self) -> Ask | None:
        """Makes the front job's question the conversation's; what to ask a server.

        A question that cannot be asked after what the server has decided is dropped, so that the next one is asked.
        """
        while (job := self.front) is not None:
            try:
                return self.conversation.ask(list(job.turn(self.conversation.tokens)), job.settings)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # whatever a template raises
                self._jobs.popleft()
                if job is self.current:
                    self.current = None
                    raise
                known = error if isinstance(error, MoaError) else InternalError(f"A question has failed: {error!r}.")
                self.events.append(events.Refused(known))
        return None

    def forget_current(self) -> None:
        """Abandons the current answer, whose reader is gone; a question that got no answer is taken back."""
        self._take_back()
        lasting = events.LinkChanged | events.Notice | events.Earlier | events.Settled | events.Refused
        self.events = deque(event for event in self.events if isinstance(event, lasting))

    def restore(self, state: ConversationState) -> None:
        """Takes the place of a conversation that was kept; its answers that no server has verified wait for one."""
        self.reset()
        self.conversation.restore(state)
        for job in state.unverified:
            self._jobs.append(job)
        if self.front is not None and not state.is_begun:
            self.ask_front()
        for job in state.unverified:
            decided: Sequence[int] = ()
            if job is self.front:
                decided = self.conversation.answer
            else:
                job.asked = list(job.turn(self.text_before(job)))
            if job.left:  # the program may have been killed just before the device's text ended the answer
                job.finish = self._finish_rule(job).finish_of([*decided, *job.written])
                job.left = job.finish is Finish.UNFINISHED

    def rewind(self, answers: int) -> bool:
        """Keeps the first `answers` answers; whether committed text had to go, of which a server may know."""
        if self.current is not None:
            raise ProtocolError("the answer under way to end first", "a wish to rewind")
        self._withdrawn = None
        turns = len(self.conversation.turns)
        if answers >= turns:
            while len(self._jobs) > answers - turns + 1:
                self._jobs.pop()
            return False
        self._forget_decided(turns - (self.front is not None) - answers)
        self._jobs.clear()
        self.conversation.rewind(answers)
        return True

    def reset(self) -> None:
        self._jobs.clear()
        self.current = None
        self.events = deque(
            event for event in self.events if not isinstance(event, events.Earlier | events.Settled | events.Refused)
        )
        self.conversation.reset()

    # ------------------------------------------------------------ what the server decides

    def on_committed(
        self, tokens: Sequence[int], chances: Sequence[TokenChances] = (), writers: Sequence[Provenance] = ()
    ) -> None:
        """Takes in tokens of the front job's answer from a verdict.

        `chances` and `writers` are those of each token, and empty where they are not known.
        """
        job = self.front
        if job is None:
            return
        confirmed = 0
        for mine, theirs in zip(job.written, tokens, strict=False):
            if mine != theirs:
                break
            confirmed += 1
        del job.written[:confirmed]
        job.kept += confirmed
        if job is not self.current:
            job.verified += tokens
        if confirmed:
            self._tell(
                job,
                events.Committed(
                    tuple(tokens[:confirmed]),
                    confirmed,
                    chances=tuple(chances[:confirmed]),
                    writers=tuple(writers[:confirmed]),
                ),
            )
        if confirmed < len(tokens):
            self._correct(job, len(tokens) - confirmed)
            rest = tuple(tokens[confirmed:])
            self._tell(
                job, events.Committed(rest, chances=tuple(chances[confirmed:]), writers=tuple(writers[confirmed:]))
            )

    def on_finished(self, finish: Finish) -> Ask | None:
        """Ends the front job's answer, now fully decided; the next question to ask, if there is one."""
        job = self.front
        if job is None:
            return None
        self._correct(job)
        self._jobs.popleft()
        if job is self.current:
            self.current = None
            self.events.append(events.Ended(finish))
        else:
            self._settle(job, finish, _outcome(job))
        return self.ask_front()

    def on_refused(self, error: MoaError) -> Ask | None:
        """Drops the front job's ended answer, which the server refuses; the next question to ask, if there is one."""
        self.conversation.give_up()
        self._jobs.popleft()
        self.events.append(events.Refused(error))
        return self.ask_front()

    def keep(self, answer: WithdrawnAnswer) -> None:
        """Ends the current answer, just begun, as that one was."""
        self.conversation.keep(answer.tokens, answer.finish, answer.writers)
        self.events.append(events.Committed(answer.tokens, writers=answer.writers))
        self.on_finished(answer.finish)

    # ------------------------------------------------------------ standalone text

    def drop_draft(self) -> None:
        """Forgets the draft in flight: no server will decide it."""
        if self.conversation.phase is Phase.ANSWERING:
            self.conversation.drop_draft()

    def text_before(self, job: Job) -> list[int]:
        """The text that a job's provisional text continues."""
        text = list(self.conversation.tokens)
        for earlier in self._jobs:
            if earlier is not self.front:
                text += earlier.asked
            if earlier is job:
                break
            text += earlier.written
        return text

    def sampling_of(self, job: Job) -> Sampling:
        """How tokens of a job's answer are chosen."""
        return job.settings.sampling.within(self._start_of(job))

    def write(self, job: Job, tokens: Sequence[int], chances: Sequence[float] = (), *, likely: bool = True) -> None:
        """Appends to the standalone text, up to the end of the answer.

        Args:
            chances: of each token, that it is the target's if all before it are.
            likely: all text since the newest decided token is likely to be the target's.
        """
        conversation = self.conversation
        decided = conversation.answer_length if job is self.front else 0
        most = job.settings.decisive_tokens
        recent = conversation.tokens[-most:][-decided:] if decided else []
        recent += job.written[-most:]
        taken, finish = self._finish_rule(job).cut(recent, tokens, decided + len(job.written) - len(recent))
        job.written += taken
        job.shown += len(taken)
        if taken:
            self._tell(job, events.Provisional(tuple(taken), tuple(chances[: len(taken)]), likely=likely))
        if finish is not Finish.UNFINISHED:
            job.finish = finish

    def is_read(self, job: Job) -> bool:
        """Whether a server has begun a job's answer: what the drafter knows of a question, it knows from there."""
        return job is self.front and self.conversation.answer_length > 0

    def hold_back(self, job: Job, *, unread: bool) -> None:
        """Called when the next token of standalone text is too unlikely to be shown.

        `unread`: because no server has read the question.
        """
        self._tell(job, events.HeldBack(unread))

    def end_standalone(self) -> None:
        """Called when there is no server to wait for: the current answer, if ended, stays provisional."""
        job = self.current
        if job is not None and job.has_ended:
            self.current = None
            self.events.append(events.Ended(job.finish, provisional=True))

    def leave_to_server(self) -> None:
        """Gives the prompt back: the current answer goes on when there is a server again."""
        if self.current is not None:
            self.current.left = True
            self.end_standalone()

    def stop(self) -> None:
        """Ends the current answer where it is for the user, without the server.

        Standalone text waits to be verified. Without any, the answer is over.
        """
        job = self.current
        if job is None:
            return
        if not job.written:
            self._take_back()
            self.events.append(events.Ended(Finish.CANCELLED))
            return
        length = len(job.written) + (self.conversation.answer_length if self.current_is_front else 0)
        job.settings = replace(job.settings, max_tokens=length)  # where the server's answer will end
        if self.current_is_front:
            self.conversation.settings = job.settings
        job.finish = Finish.CANCELLED
        self.end_standalone()

    # ------------------------------------------------------------ inside

    def _forget_decided(self, answers: int) -> None:
        """Forgets what is not told yet of the front job and of so many answers before it."""
        told = deque[events.Event]()
        for event in reversed(self.events):
            answers -= isinstance(event, events.Settled | events.Refused)
            if answers < 0 or not isinstance(event, events.Earlier | events.Settled | events.Refused):
                told.appendleft(event)
        self.events = told

    def _take_back(self) -> None:
        """Ends the current answer with its committed text; a question that got no answer is taken back."""
        job, self.current = self.current, None
        if job is None:
            return
        if self.front is job:
            self.conversation.give_up()
        self._jobs.remove(job)

    def _finish_rule(self, job: Job) -> FinishRule:
        rule = self.end_rule
        return FinishRule(job.settings, self._start_of(job), rule.context_tokens, rule.end_of_text, rule.decode)

    def _start_of(self, job: Job) -> int:
        if job is self.front:
            return self.conversation.answer_start
        return len(self.text_before(job))

    def _correct(self, job: Job, decided: int = 0) -> None:
        """Withdraws the provisional text of the front job's answer.

        `decided`: tokens that a server has just committed in its place.
        """
        if job.written:
            dropped = len(job.written)
            if dropped >= WORTH_KEEPING:
                self._withdrawn = self._with_written(job, decided)
            job.written.clear()
            if job is self.current:
                job.finish = Finish.UNFINISHED  # the standalone text that ended it is gone
            else:
                job.corrected = True
            self._tell(job, events.Corrected(dropped))

    def _with_written(self, job: Job, decided: int) -> WithdrawnAnswer:
        conversation = self.conversation
        end = len(conversation.tokens) - decided
        before = conversation.tokens[conversation.answer_start : end]
        writers = conversation.provenance[conversation.answer_start : end] + [Provenance.ALONE] * len(job.written)
        finish = Finish.CANCELLED if job.finish is Finish.UNFINISHED else job.finish
        return WithdrawnAnswer(len(conversation.turns), (*before, *job.written), tuple(writers), finish)

    def _settle(self, job: Job, finish: Finish, outcome: events.AnswerOutcome) -> None:
        self.events.append(events.Settled(tuple(job.verified), outcome, finish, job.shown, job.kept))

    def _tell(self, job: Job, event: events.Event) -> None:
        """Reports an event of the current answer, or of the oldest that ended without the server."""
        if job is self.current:
            self.events.append(event)
        elif isinstance(event, events.Committed | events.Corrected):
            self.events.append(events.Earlier(event))


def _outcome(job: Job) -> events.AnswerOutcome:
    if job.corrected:
        return events.AnswerOutcome.CORRECTED
    return events.AnswerOutcome.COMPLETED if job.left else events.AnswerOutcome.CONFIRMED
