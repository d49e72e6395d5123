"""The answers of one conversation, and the events for their reader: committed, provisional, corrected, ended.

Pure. State: the conversation, the answers still wanted (the one that the user waits for, and those before it that ended
without the server), and events not yet fetched. The front one is what the `Conversation` is about; those after it build
on provisional text, and wait until it is verified. Invariant: the events add up to what the conversation and the front
one's `written` hold.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from moa_shared.errors import InternalError, MoaError, ProtocolError
from moa_shared.protocol.messages import AnswerSettings, Ask, Finish, FinishRule

from moa_client.conversation import events
from moa_client.conversation.answer_text import WORTH_KEEPING
from moa_client.conversation.conversation import Conversation, ConversationState, OpenAnswer, Turn, VerdictEffect
from moa_client.conversation.events import Provenance
from moa_client.conversation.figures import Figures

_DECISIONS = events.Earlier | events.Settled | events.Refused  # about answers that ended without the server


@dataclass(frozen=True, slots=True)
class WithdrawnAnswer:
    """The last of so many answers as it was before a server has corrected what this device had written of it.

    `finish`: with which it had ended; CANCELLED: it had not.
    """

    turns: int
    tokens: tuple[int, ...]
    writers: tuple[Provenance, ...]
    finish: Finish


class OpenAnswers:
    """The open answers of one conversation, in order. `end_rule`: what ends a standalone one, for any settings."""

    def __init__(self, conversation: Conversation, end_rule: FinishRule) -> None:
        self.conversation = conversation
        self.end_rule = end_rule
        self.current: OpenAnswer | None = None
        self.events: deque[events.Event] = deque()
        self.figures = Figures()  # of the newest answer
        self.withdrawn: WithdrawnAnswer | None = None  # the newest answer, until the next question
        self._open: deque[OpenAnswer] = deque()

    @property
    def front(self) -> OpenAnswer | None:
        return self._open[0] if self._open else None

    @property
    def unsettled(self) -> int:
        """Number of answers that ended without the server and are not verified yet."""
        return len(self._open) - (self.current is not None)

    # ------------------------------------------------------------ questions

    def begin(self, turn: Turn | None, settings: AnswerSettings) -> Ask | None:
        """Begins an answer; what to ask a server, if nothing before it is unsettled.

        `turn`: of its question; None: the newest answer, which has ended, goes on. If it raises, everything is as it
        was.
        """
        answer, ask = OpenAnswer(turn or (lambda _: ()), settings), None
        if self.front is None:
            question = list(turn(self.conversation.tokens)) if turn is not None else None
            ask = self.conversation.go_on(settings) if question is None else self.conversation.ask(question, settings)
        elif turn is None:
            raise ProtocolError("settled answers", f"{len(self._open)} that are not")
        else:
            answer.asked = list(turn(self.text_before(answer)))
        self._open.append(answer)
        self.current, self.figures, self.withdrawn = answer, answer.figures, None
        return ask

    def ask_front(self) -> Ask | None:
        """Makes the front answer's question the conversation's; what to ask a server.

        A question that cannot be asked after what the server has decided is dropped, so that the next one is asked.
        """
        while (answer := self.front) is not None:
            try:
                return self.conversation.ask(list(answer.turn(self.conversation.tokens)), answer.settings)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # whatever a template raises
                self._open.popleft()
                if answer is self.current:
                    self.current = None
                    raise
                known = error if isinstance(error, MoaError) else InternalError(f"A question has failed: {error!r}.")
                self.events.append(events.Refused(known))
        return None

    def forget_current(self) -> None:
        """Abandons the current answer, whose reader is gone; a question that got no answer is taken back."""
        answer, self.current = self.current, None
        if answer is not None:
            if self.front is answer:
                self.conversation.give_up()
            self._open.remove(answer)
        lasting = _DECISIONS | events.LinkChanged | events.Notice
        self.events = deque(event for event in self.events if isinstance(event, lasting))

    def restore(self, state: ConversationState) -> None:
        """Continues a conversation that was kept; its answers that no server has verified wait for one."""
        self.conversation.restore(state)
        self._open.extend(state.unverified)
        if self.front is not None and not state.is_begun:
            self.ask_front()
        for answer in state.unverified:
            decided: Sequence[int] = ()
            if answer is self.front:
                decided = self.conversation.answer
            else:
                answer.asked = list(answer.turn(self.text_before(answer)))
            if answer.left:  # the program may have been killed just before the device's text ended the answer
                rule = replace(self.end_rule, settings=answer.settings, answer_start=self.start_of(answer))
                answer.finish = rule.finish_of([*decided, *answer.written])
                answer.left = answer.finish is Finish.UNFINISHED

    def rewind(self, answers: int) -> bool:
        """Keeps the first `answers` answers; whether committed text had to go, of which a server may know."""
        if self.current is not None:
            raise ProtocolError("the answer under way to end first", "a wish to rewind")
        self.figures, self.withdrawn = Figures(), None
        turns = len(self.conversation.turns)
        if answers >= turns:
            while len(self._open) > answers - turns + 1:
                self._open.pop()
            return False
        gone, told = turns - (self.front is not None) - answers, deque[events.Event]()
        for event in reversed(self.events):  # nothing is told any more of what has gone
            gone -= isinstance(event, events.Settled | events.Refused)
            if gone < 0 or not isinstance(event, _DECISIONS):
                told.appendleft(event)
        self.events = told
        self._open.clear()
        self.conversation.rewind(answers)
        return True

    # ------------------------------------------------------------ what the server decides

    def on_committed(self, effect: VerdictEffect) -> None:
        """Takes in tokens of the front answer from a verdict."""
        answer, tokens = self.front, effect.tokens
        if answer is None:
            return
        pairs = zip(answer.written, tokens, strict=False)
        confirmed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        del answer.written[:confirmed]
        figures = answer.figures
        figures.tokens += len(tokens)
        figures.kept += confirmed
        figures.undecided -= confirmed
        if answer is not self.current:
            answer.verified += tokens
            figures.seconds *= confirmed == len(tokens)  # what changes after its end has another time

        def tell(part: slice, same: int = 0) -> None:
            known = {"chances": effect.chances[part], "writers": effect.writers[part]}
            self._tell(answer, events.Committed(tokens[part], same, **known))  # type: ignore[arg-type]

        if confirmed:
            tell(slice(confirmed), confirmed)
        if confirmed < len(tokens):
            self._correct(answer, len(tokens) - confirmed)
            tell(slice(confirmed, None))

    def on_finished(self, finish: Finish) -> Ask | None:
        """Ends the front answer, now fully decided; the next question to ask, if there is one."""
        answer = self.front
        if answer is None:
            return None
        self._correct(answer)
        self._open.popleft()
        if answer is self.current:
            self._end(finish)
        else:
            outcome = events.AnswerOutcome.COMPLETED if answer.left else events.AnswerOutcome.CONFIRMED
            outcome = events.AnswerOutcome.CORRECTED if answer.corrected else outcome
            figures = answer.figures
            self.events.append(
                events.Settled(tuple(answer.verified), outcome, finish, figures.provisional, figures.kept)
            )
        return self.ask_front()

    def on_refused(self, error: MoaError) -> Ask | None:
        """Drops the front answer, which has ended: the server refuses it; the next question to ask, if there is one."""
        self.conversation.give_up()
        self._open.popleft()
        self.events.append(events.Refused(error))
        return self.ask_front()

    def keep(self, answer: WithdrawnAnswer, turn: Turn, settings: AnswerSettings) -> Sequence[events.Event]:
        """Has an answer, which was rewound, be again what it was, unverified; what happens. `turn`: of its question."""
        self.begin(turn, settings)
        self.conversation.keep(answer.tokens, answer.writers)
        self.events.append(events.Committed(answer.tokens, writers=answer.writers))
        self.on_finished(answer.finish)
        told, self.events = self.events, deque()
        return told

    # ------------------------------------------------------------ standalone text

    def text_before(self, answer: OpenAnswer) -> list[int]:
        """The text that an answer's provisional text continues."""
        text = list(self.conversation.tokens)
        for earlier in self._open:
            if earlier is not self.front:
                text += earlier.asked
            if earlier is answer:
                break
            text += earlier.written
        return text

    def start_of(self, answer: OpenAnswer) -> int:
        return self.conversation.answer_start if answer is self.front else len(self.text_before(answer))

    def write(
        self, answer: OpenAnswer, tokens: Sequence[int], chances: Sequence[float] = (), *, likely: bool = True
    ) -> None:
        """Appends to the standalone text, up to the end of the answer; see `Provisional`."""
        conversation = self.conversation
        decided = conversation.answer_length if answer is self.front else 0
        most = answer.settings.decisive_tokens
        recent = conversation.tokens[-most:][-decided:] if decided else []
        recent += answer.written[-most:]
        rule = replace(self.end_rule, settings=answer.settings, answer_start=self.start_of(answer))
        taken, finish = rule.cut(recent, tokens, decided + len(answer.written) - len(recent))
        answer.written += taken
        answer.figures.provisional += len(taken)
        answer.figures.undecided += len(taken)
        if taken:
            self._tell(answer, events.Provisional(tuple(taken), tuple(chances[: len(taken)]), likely=likely))
        if finish is not Finish.UNFINISHED:
            answer.finish = finish

    def end_standalone(self) -> None:
        """Called when there is no server to wait for: the current answer, if ended, stays provisional."""
        if self.current is not None and self.current.has_ended:
            self._end(self.current.finish, provisional=True)

    def stop(self) -> None:
        """Ends the current answer where it is for the user, without the server.

        Standalone text waits to be verified. Without any, the answer is over.
        """
        answer = self.current
        if answer is None:
            return
        if not answer.written:
            told = self.events
            self.forget_current()
            self.events, answer.figures.finish = told, Finish.CANCELLED
            self.events.append(events.Ended(Finish.CANCELLED))
            return
        is_front = answer is self.front
        length = len(answer.written) + (self.conversation.answer_length if is_front else 0)
        answer.settings = replace(answer.settings, max_tokens=length)  # where the server's answer will end
        if is_front:
            self.conversation.settings = answer.settings
        answer.finish = Finish.CANCELLED
        self.end_standalone()

    # ------------------------------------------------------------ inside

    def _end(self, finish: Finish, *, provisional: bool = False) -> None:
        if self.current is not None:
            self.current.figures.finish, self.current = finish, None
            self.events.append(events.Ended(finish, provisional=provisional))

    def _correct(self, answer: OpenAnswer, decided: int = 0) -> None:
        """Withdraws the provisional text of the front answer, if there is any, for `decided` committed tokens."""
        if answer.written:
            dropped, text = len(answer.written), self.conversation
            if dropped >= WORTH_KEEPING and len(self._open) == 1:
                part = slice(text.answer_start, len(text.tokens) - decided)
                writers = (*text.provenance[part], *[Provenance.ALONE] * dropped)
                finish = Finish.CANCELLED if answer.finish is Finish.UNFINISHED else answer.finish
                tokens = (*text.tokens[part], *answer.written)
                self.withdrawn = WithdrawnAnswer(len(text.turns), tokens, writers, finish)
            answer.written.clear()
            answer.figures.undecided -= dropped
            if answer is self.current:
                answer.finish = Finish.UNFINISHED  # the standalone text that ended it is gone
            else:
                answer.corrected, answer.figures.seconds = True, 0.0
            self._tell(answer, events.Corrected(dropped))

    def _tell(self, answer: OpenAnswer, event: events.Event) -> None:
        """Reports an event of the current answer, or of the oldest that ended without the server."""
        if answer is self.current:
            self.events.append(event)
        elif isinstance(event, events.Committed | events.Corrected):
            self.events.append(events.Earlier(event))
