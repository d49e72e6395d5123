"""One conversation in text: questions in, updates out, for any number of surfaces, over a `ClientEngine` in tokens.

State: names, the system prompt, and in its task what is to be done, in order, and the answer under way; its `publisher`
has the answers and the surfaces. Invariant: one thing at a time: it answers a question, or attends to the link.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from itertools import chain

from moa_shared.errors import ConfigError, ConflictError, OverloadedError
from moa_shared.protocol.messages import Finish
from moa_shared.sampling.settings import CHAT_DEFAULTS
from moa_shared.tracing import begin_span

from moa_client.conversation.answer_text import AnswerDecoder, AnswerText, nothing_withdrawn
from moa_client.conversation.conversation import Turn
from moa_client.conversation.events import Ended, Failed, LinkState, Settled, Titled
from moa_client.conversation.figures import LinkStatus
from moa_client.conversation.options import AnswerOptions, draw_seed
from moa_client.device.loading import Device
from moa_client.engine.engine import ClientEngine
from moa_client.history.reading import ConversationOrigin, StoredConversation
from moa_client.history.recorder import HistoryRecorder, restored
from moa_client.host.calls import Calls
from moa_client.host.publisher import Publisher
from moa_client.logs import told
from moa_client.surface.messages import ConversationFacts
from moa_client.tools.answer_reader import split_by
from moa_client.tools.template import Said, reasoning_marks
from moa_client.tools.tool import Tool, ToolBox
from moa_client.tools.turns import ConversationTurns


def facts_of(device: Device, link: LinkStatus) -> ConversationFacts:
    """What can be said about all conversations of a device."""
    choice = device.choice
    return ConversationFacts(
        target=device.target.files.target_id,
        server=link.server,
        online=link.state is not LinkState.OFFLINE,
        level=device.target.level,
        exact=device.target.is_exact,
        drafter=choice.name if choice is not None else "",
        drafter_reason=choice.reason if choice is not None else "",
        standalone=choice.standalone if choice is not None else "",
        companion=device.companion.name if device.companion is not None else "",
    )


def origin_of(device: Device, server: str, system: str | None) -> ConversationOrigin:
    """Where conversations with a device's target at this address begin. `system`: their system prompt."""
    target, identity = device.target, device.target.identity
    fingerprint, tokenizer = identity.target_fingerprint, identity.tokenizer_hash
    return ConversationOrigin(target.files.target_id, fingerprint, tokenizer, target.level, server, system)


Menu = Callable[["TextConversation", str | None], Awaitable[None]]


class TextConversation:
    """One conversation.

    Args:
        facts: names, which `facts` brings up to date.
        system: the system prompt; None: the model's own.
        idle_seconds: how long it keeps its stream while nothing is asked.
        journal: keeps what is said, before anybody sees it; None: nothing is kept.
        box: the tools that a new conversation offers, and that run calls; None: there are none.
        spells_marks: the text of answers has the marks of reasoning, also where they are special tokens.
    """

    def __init__(
        self,
        engine: ClientEngine,
        facts: ConversationFacts,
        system: str | None = None,
        journal: HistoryRecorder | None = None,
        idle_seconds: float = math.inf,
        box: ToolBox | None = None,
        *,
        spells_marks: bool = True,
    ) -> None:
        self.engine = engine
        self.menu: Menu  # of the models that may continue it
        self._facts = facts
        self._system = system
        self.publisher = Publisher(engine, journal, spells_marks=spells_marks)
        turns = self._turns_with(system, box.tools if box is not None else ())
        self.calls = Calls(engine, self.publisher, box, turns)
        self.task = ConversationTask(engine, self.publisher, self.calls, idle_seconds)

    @property
    def facts(self) -> ConversationFacts:
        device = self.engine.device
        return replace(
            facts_of(device, self.engine.status),
            identifier=self._facts.identifier,
            title=self._facts.title,
            absent=self.publisher.link_reason or self._facts.absent,
            offer=self._facts.offer,
            system=self._system,
            sampling=AnswerOptions().decided(device.target.sampling, CHAT_DEFAULTS).sampling(),
            thinking=reasoning_marks(device.target.tokenizer),
        )

    def resume(self, stored: StoredConversation) -> None:
        """Continues a conversation that was kept, before the first question; what is unverified is verified then."""
        self.publisher.resume(stored)
        if self.publisher.answers:
            self.calls.turns = self._turns_with(self._system, self.publisher.answers[0].options.tools)
        self.engine.restore(restored(stored, self.calls.turn_of))

    def set_system(self, system: str | None) -> None:
        """Sets the system prompt, before the first question."""
        if self.publisher.answers or self.task.is_answering:
            raise ConflictError("The conversation has begun.", hint="Begin another one for another system prompt.")
        turns = self._turns_with(system, self.calls.turns.tools)
        turns.check()
        self._system, self.calls.turns = system, turns

    def choose_model(self, name: str | None) -> None:
        """Has the model of a name answer from the next question on; None: tells which models there are."""
        self.task.do(lambda: self.menu(self, name))

    async def move(self, engine: ClientEngine) -> None:
        """Continues on an engine of another model, for which all that was said is new text."""
        await self.engine.close()
        if (is_offline := self.engine.availability.wants_offline) != engine.availability.wants_offline:
            (engine.go_offline if is_offline else engine.go_online)()
        self.publisher.move(engine, origin_of(engine.device, engine.status.server, self._system))
        self.engine = self.calls.engine = self.task.engine = engine
        self.calls.turns = self._turns_with(self._system, self.calls.turns.tools)
        self._facts = replace(self._facts, absent="", offer="")

    def set_title(self, title: str) -> None:
        self._facts = replace(self._facts, title=title)
        self.publisher.publish(Titled(title))

    async def close(self) -> None:
        """Ends what is under way and says goodbye to the server."""
        await self.task.close()
        for subscription in self.publisher.subscriptions:
            subscription.close()
        await self.engine.close()

    def _turns_with(self, system: str | None, tools: Sequence[Tool]) -> ConversationTurns:
        target = self.engine.device.target
        ends, said = target.end_of_text, lambda: tuple(chain.from_iterable(map(_said, self.publisher.answers)))
        return ConversationTurns(target.tokenizer, system, target.context_tokens, ends, tools, said)


def _said(text: AnswerText) -> Said:
    """The question and the answer of another model, without reasoning."""
    if not text.options.model or not text.committed:
        return ()
    question, answer = text.question or "\n".join(each.content for each in text.options.results), text.committed
    if text.options.marks is not None:
        split = split_by(text.options.marks, text.options.reasoning_effort)
        split.read(text.committed)
        answer = split.text + split.ahead()[1]
    return ("user", question), ("assistant", answer)


MOST_WAITING = 16  # questions behind the one that is answered
MOST_ROUNDS = 16  # of calls after one question: a small model may call for ever


class ConversationTask:
    """Does what is asked of one conversation, whose stream it keeps for `idle_seconds` after that."""

    def __init__(self, engine: ClientEngine, publisher: Publisher, calls: Calls, idle_seconds: float) -> None:
        self.asked_at = 0.0  # the newest question, by the loop's clock
        self.engine = engine
        self._publisher = publisher
        self._calls = calls
        self._idle_seconds = idle_seconds
        self._todo: deque[Callable[[], Awaitable[None]]] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._asked = 0  # questions whose answers are not over
        self._is_stopped = False  # the oldest of them is not wanted any more
        self._wanted = asyncio.Event()  # there is something to do
        self._task = asyncio.create_task(self._run())

    @property
    def is_answering(self) -> bool:
        """Whether an answer or a call of a tool is under way or waits for its turn, rather than for the user."""
        return bool(self._todo) or (self._asked > 0 and not self._calls.is_waiting)

    def ask(self, question: str, options: AnswerOptions, instead_of: int = 0) -> None:
        """Asks; after the answers that are under way.

        `instead_of`: in the place of the answer of this number, and of those after it; 0: after all.
        """
        self._calls.turn_of(question, options)  # checks it; by its turn another model may answer
        self.ask_turn(
            question, lambda before: self._calls.turn_of(question, options)(before), options, instead_of=instead_of
        )

    def ask_turn(
        self, question: str, turn: Turn, options: AnswerOptions, *, traceparent: str = "", instead_of: int = 0
    ) -> None:
        """The same for a question whose tokens the caller makes; `traceparent`: of the span that it belongs to."""

        def decided() -> AnswerOptions:
            return options.decided(self.engine.device.target.sampling, CHAT_DEFAULTS, seed=draw_seed())

        decided().settings()  # checks them
        vocab_size = self.engine.conversation.vocab_size
        if strange := [token for token, _ in options.logit_bias if token >= vocab_size]:
            raise ConfigError(
                f"logit_bias names token {strange[0]}, the model has the tokens 0 to {vocab_size - 1}.", hint=""
            )
        self._do_asked(lambda: self._answer(question, turn, decided(), instead_of, traceparent))
        if self._calls.is_waiting:
            self._calls.cancel()  # the user wants something else

    def continue_answer(self, max_tokens: int) -> None:
        """Continues the newest answer by so many tokens, 0: as the context allows; or asks again about its calls."""
        if self._calls.is_waiting:
            self._calls.begin_again()
        else:
            self._do_asked(lambda: self._continue(max_tokens))

    def rewind(self, answers: int) -> None:
        """Keeps the first `answers` answers; 0: begins again."""

        async def rewind() -> None:
            self.engine.rewind(self._publisher.parts(answers))
            self._publisher.rewind(answers)

        self.do(rewind)

    def keep(self) -> None:
        """Has the newest answer be again what this device had written of it before a server has corrected it."""
        if self.engine.answers.withdrawn is None:
            raise nothing_withdrawn()
        if self._answering is not None:
            self.stop()
        self.do(self._keep)

    def stop(self, *, at_once: bool = False) -> None:
        """Ends the running answer, or the next one before it begins; a call of a tool that waits or runs is cancelled.

        `at_once`: without asking the server.
        """
        if self._calls.cancel():
            return
        self._is_stopped = self._asked > 0
        if self._answering is not None and at_once:
            self._answering.cancel()
        elif self._answering is not None:
            self.engine.stop()

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def do(self, action: Callable[[], Awaitable[None]]) -> None:
        self._todo.append(action)
        self._wanted.set()
        self.engine.wake()

    def _do_asked(self, action: Callable[[], Awaitable[None]]) -> None:
        if len(self._todo) >= MOST_WAITING:
            raise OverloadedError(
                f"{MOST_WAITING} questions wait for an answer in this conversation.", hint="Wait for one of them."
            )

        async def answer() -> None:
            try:
                await action()
            finally:
                self._asked -= 1
                self._is_stopped = False

        self.asked_at = asyncio.get_running_loop().time()
        self._asked += 1
        self.do(answer)

    async def _run(self) -> None:
        while True:
            self._wanted.clear()
            if not self._todo:
                if not await self._attend():
                    await self._wanted.wait()
                continue
            try:
                await self._todo.popleft()()
            except BaseException as error:  # noqa: BLE001 (a drafter that cannot be loaded; the next question can)
                self._publisher.publish(Failed(told(error)))

    async def _attend(self) -> bool:
        """Maintains the link until there is something to do; False if that failed, or nothing was asked for long."""
        is_idle = False

        def become_idle() -> None:
            nonlocal is_idle
            is_idle = not self.engine.answers.unsettled
            self.engine.wake()

        timer = asyncio.get_running_loop().call_later(self._idle_seconds, become_idle)
        try:
            async with aclosing(self.engine.attend(lambda: bool(self._todo) or is_idle)) as events:
                async for event in events:
                    self._publisher.on_engine_event(event)
                    if isinstance(event, Settled):
                        self._calls.leave("The answer calls a tool.")
        except BaseException as error:  # noqa: BLE001
            self._publisher.publish(Failed(told(error)))
            return False
        finally:
            timer.cancel()
        if is_idle and not self._todo:
            await self.engine.connection.drop()  # the server keeps the session for a while
            return False
        return True

    async def _answer(
        self, question: str, turn: Turn, options: AnswerOptions, instead_of: int, traceparent: str
    ) -> None:
        if instead_of > len(self._publisher.answers):
            instead_of = 0  # it was taken back meanwhile
        if instead_of:
            self.engine.rewind(self._publisher.parts(instead_of - 1))
        if not self._publisher.answers or instead_of == 1:
            options = replace(options, tools=self._calls.turns.tools)
        await self._follow(turn, self._publisher.begin(question, options, instead_of), traceparent)
        await self._answer_calls()

    async def _continue(self, max_tokens: int) -> None:
        """Continues the newest answer, or answers the calls that it has ended with."""
        if self._calls.newest():
            self._calls.begin_again()
        elif (problem := self._why_not_continued()) is not None:
            self._publisher.publish(Failed(problem, taken_back=True))
            return
        else:
            most = max_tokens and len(self.engine.conversation.answer) + max_tokens
            options = replace(self._publisher.answers[-1].options, max_tokens=most)
            await self._follow(None, self._publisher.continue_newest(options))
        await self._answer_calls()

    def _why_not_continued(self) -> ConflictError | None:
        """Why the newest answer cannot go on; None: it can."""
        if not self._publisher.answers:
            return ConflictError("There is no answer to continue.", hint="Ask something first.")
        text = self._publisher.answers[-1]
        if text.finish is Finish.CONTEXT:
            return ConflictError("The context is full.", hint="Begin a new conversation.")
        if text.is_unsettled or self.engine.answers.unsettled:
            return ConflictError("The server has not checked the answer yet.", hint="Continue it when it has.")
        if not text.may_continue or not self._publisher.is_part(text):
            return ConflictError("The answer has come to its end.", hint="Ask the next question.")
        return None

    async def _follow(self, turn: Turn | None, answer: AnswerDecoder, traceparent: str = "") -> None:
        """Follows an answer to its end. `turn`: the question; None: it is continued."""
        span = begin_span("question", traceparent)
        self._answering = asyncio.create_task(self._stream(turn, answer, span.traceparent))
        try:
            await self._answering
        except asyncio.CancelledError:
            self._answering.cancel()
            await asyncio.gather(self._answering, return_exceptions=True)
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise  # the conversation is closed: where it is kept, the answer continues when it is opened again
            self._publisher.break_off(Ended(Finish.CANCELLED), answer)
        except BaseException as error:  # noqa: BLE001 (a defect, too, ends this answer alone)
            self._publisher.break_off(Failed(told(error), taken_back=not answer.text.tokens), answer)
        finally:
            span.end()
            self._answering = None

    async def _stream(self, turn: Turn | None, answer: AnswerDecoder, traceparent: str) -> None:
        if turn is not None:
            # A long question takes a while, in which other conversations continue; the engine finds it made.
            await asyncio.to_thread(turn, self.engine.conversation.tokens)
        if self._is_stopped:
            self._publisher.break_off(Ended(Finish.CANCELLED), answer)
            return
        settings = answer.text.options.settings()
        async with aclosing(self.engine.ask(turn, settings, traceparent=traceparent)) as events:
            async for event in events:
                self._publisher.on_engine_event(self._calls.counted(event, answer.text), answer)

    async def _keep(self) -> None:
        publisher, text, answers = self._publisher, self._publisher.answers[-1], self.engine.answers
        if (withdrawn := answers.withdrawn) is None or not publisher.is_part(text):
            publisher.publish(Failed(nothing_withdrawn(), taken_back=True))
            return
        turn = self._calls.turn_of(text.question, text.options)
        self.engine.rewind(withdrawn.turns - 1)
        events = answers.keep(withdrawn, turn, text.options.settings())
        publisher.rewind(len(publisher.answers) - 1)
        answer = publisher.begin(text.question, text.options)
        for event in events:
            publisher.on_engine_event(event, answer)

    async def _answer_calls(self) -> None:
        """Answers the calls of the newest answer, and has the next one begin with that, until one calls nothing."""
        for _ in range(MOST_ROUNDS):
            if not (results := await self._calls.answer()):
                return
            before, options = len(self._publisher.answers), self._publisher.answers[-1].options
            options = replace(options, tools=(), results=tuple(results))
            await self._follow(self._calls.turn_of("", options), self._publisher.begin("", options))
            if len(self._publisher.answers) == before:
                return  # it was stopped before it began, or what the tools say does not fit
        self._calls.leave(f"The model has called tools {MOST_ROUNDS} times in a row.")
