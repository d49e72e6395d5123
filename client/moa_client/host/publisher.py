"""What is said in a conversation, on its way to those who are to know it: kept first, then told to all surfaces.

State: the answers with their text, those of them that a server is still to decide, the surfaces, and the journal.
Invariant: all surfaces get the same updates in the same order.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from moa_shared.errors import ConflictError

from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerDecoder, AnswerText, Update, apply_update
from moa_client.conversation.options import AnswerOptions
from moa_client.device.loading import Device
from moa_client.engine.engine import ClientEngine
from moa_client.history.reading import ConversationOrigin, StoredConversation
from moa_client.history.recorder import HistoryRecorder, reopened
from moa_client.logs import told
from moa_client.surface.conversation import Subscription
from moa_client.surface.messages import object_of
from moa_client.tools.template import reasoning_marks
from moa_client.tools.thinking import have_any

MOST_ATTRIBUTED = 8  # of the newest answers, which are decoded again: 9 ms for a thousand tokens


log = logging.getLogger(__name__)
OUTAGE = (events.LinkState.OFFLINE, events.LinkState.BACK)  # the other states are degrees of a link that works


def log_link_change(event: events.Event) -> None:
    """One line if the event is a change of the link's state, or of what answers at its other end."""
    if isinstance(event, events.ServerChanged):
        log.warning("%s: %s", "server changed" if event.what == "address" else "server replaced", event.message)
    if isinstance(event, events.LinkChanged):
        level = logging.WARNING if event.state in OUTAGE else logging.INFO
        log.log(level, "link %s%s", event.state.value, f": {event.reason}" if event.reason else "")


class Publisher:
    """Keeps what happens in one conversation and tells it.

    Args:
        engine: knows the link and what answers cost.
        journal: keeps what is said, before anybody sees it; None: nothing is kept.
        spells_marks: the text of answers has the marks of reasoning, also where they are special tokens.
    """

    def __init__(self, engine: ClientEngine, journal: HistoryRecorder | None, *, spells_marks: bool = True) -> None:
        self._spells_marks = spells_marks
        self.answers: list[AnswerText] = []
        self.link_reason = ""  # why the link is as it is; empty: it is there
        self.subscriptions: list[Subscription] = []
        self.engine = engine
        self._journal = journal
        self._unsettled: deque[AnswerDecoder] = deque()
        self._gone: set[int] = set()  # numbers of answers that are not part of the conversation any more

    def resume(self, stored: StoredConversation) -> None:
        for number, answer in enumerate(stored.answers, 1):
            decoder = reopened(answer, number, self._decode, has_runs=number > len(stored.answers) - MOST_ATTRIBUTED)
            self.answers.append(decoder.text)
            if not answer.is_part:
                self._gone.add(number)
            elif answer.standing.is_open:
                self._unsettled.append(decoder)

    def begin(self, question: str, options: AnswerOptions, instead_of: int = 0) -> AnswerDecoder:
        """An answer begins.

        `instead_of`: in the place of the answer of this number, and of those after it; 0: after all.
        """
        if instead_of:
            self._drop(instead_of - 1)
        self.publish(events.Asked(question, options), instead_of or len(self.answers) + 1)
        return AnswerDecoder(self.answers[-1], self._decode)

    def continue_newest(self, options: AnswerOptions) -> AnswerDecoder:
        text = self.answers[-1]
        decoder = AnswerDecoder(text, self._decode)
        decoder.restore(self.engine.conversation.answer)
        self.publish(events.Continued(options), text.number)
        return decoder

    def move(self, engine: ClientEngine, origin: ConversationOrigin) -> None:
        """Another model continues: no server decides what was said before any more. `origin`: of what it says."""
        target, reason = self.engine.device.target, f"{origin.model} answers from now on."
        while self._unsettled:
            self._decide(events.Refused(ConflictError(reason, hint="")))
        before = AnswerOptions(model=target.files.target_id, marks=reasoning_marks(target.tokenizer))
        for text in self.answers:
            if not text.options.model:
                text.options = replace(text.options, model=before.model, marks=before.marks)
        self._gone |= {text.number for text in self.answers}
        self.engine, self.link_reason = engine, ""
        self._keep(lambda journal: journal.change_model(engine.conversation, origin, before))

    def is_part(self, text: AnswerText) -> bool:
        return text.number not in self._gone

    def parts(self, answers: int) -> int:
        """How many of the first `answers` answers are part of the conversation."""
        return sum(map(self.is_part, self.answers[:answers]))

    def rewind(self, answers: int) -> None:
        self._drop(answers)
        self.publish(events.Rewound(min(answers, len(self.answers))))

    def on_engine_event(self, event: events.Event, current: AnswerDecoder | None = None) -> None:
        """Publishes an event of the engine. `current`: the answer that is under way."""
        log_link_change(event)
        match event:
            case events.Earlier() | events.Settled() | events.Refused():
                self._decide(event)
            case events.Ended() if current is not None and not event.provisional and not current.text.tokens:
                self.break_off(event, current)  # it was stopped before it began
            case events.LinkChanged():
                self.link_reason = event.reason if event.state is events.LinkState.OFFLINE else ""
                self.publish(event)
            case events.ExecutionChanged() | events.ServerChanged() | events.DrafterChanged() | events.ToolsChanged():
                self.publish(event)
            case _ if current is not None:
                if isinstance(event, events.Ended) and event.provisional:
                    self._unsettled.append(current)
                self._tell_surfaces(current.take_event(event), current.text)

    def break_off(self, event: events.Failed | events.Ended, answer: AnswerDecoder) -> None:
        """An answer is over with what is committed of it; without anything, its question is taken back."""
        text = answer.text
        if not text.is_running:
            if isinstance(event, events.Failed):
                self.publish(replace(event, taken_back=False))  # what fails after an answer's end is not about it
            return
        try:
            event = answer.break_off(event)
        except BaseException as error:  # noqa: BLE001 (a decoder that has failed once fails again)
            told(error)
            text.apply(event)
        self._tell_surfaces(event, text)
        if not text.tokens:
            self.answers.remove(text)
            if isinstance(event, events.Ended):
                self.publish(events.Rewound(len(self.answers)))

    def publish(self, event: events.SurfaceEvent, answer: int = 0) -> None:
        """Keeps and tells an event. `answer`: the number of the one that it is about; 0: none."""
        self._tell_surfaces(event, apply_update(self.answers, Update(event, answer)))

    def _drop(self, answers: int) -> None:
        """No answer after the first `answers` is decided any more."""
        self._unsettled = deque(decoder for decoder in self._unsettled if decoder.text.number <= answers)
        self._gone = {number for number in self._gone if number <= answers}

    @property
    def _decode(self) -> Callable[[Sequence[int]], str]:
        device = self.engine.device
        return answer_decode(device) if self._spells_marks else device.target.decode

    def _decide(self, event: events.Earlier | events.Settled | events.Refused) -> None:
        """A server has decided something about the oldest answer that ended without it."""
        if not self._unsettled:
            return
        answer = self._unsettled[0] if isinstance(event, events.Earlier) else self._unsettled.popleft()
        if isinstance(event, events.Refused) and not answer.text.tokens:
            self._gone.add(answer.text.number)
        self._tell_surfaces(answer.take_event(event), answer.text)

    def _tell_surfaces(self, event: events.SurfaceEvent, text: AnswerText | None) -> None:
        """Keeps what has happened; if that fails, it is said once, and nothing more of the conversation is kept."""
        figures = self.engine.figures if isinstance(event, events.Ended | events.Settled) else None
        update = Update(event, text.number if text is not None else 0, self.engine.status, figures)
        cost = object_of(figures) if figures is not None else None
        self._keep(lambda journal: journal.on_update(update, text, cost))
        for subscription in self.subscriptions:
            subscription.push_update(update)

    def _keep(self, record: Callable[[HistoryRecorder], None]) -> None:
        if (journal := self._journal) is not None:
            try:
                record(journal)
            except BaseException as error:  # noqa: BLE001
                self._journal = None
                self.publish(events.NotKept(told(error, "Keeping the conversation")))


def answer_decode(device: Device) -> Callable[[Sequence[int]], str]:
    """What decodes the tokens of answers: with special tokens where these mark reasoning, else without any."""
    target = device.target
    marks = reasoning_marks(target.tokenizer)
    if marks is None or not have_any(marks.all, target.tokenizer.special_tokens):
        return target.decode
    return target.spelled
