"""One conversation in text: questions in, updates out, for any number of surfaces, over a `ClientEngine` in tokens.

State: names and the system prompt. Its `publisher` has the answers and the surfaces, its `task` what is to be done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from moa_shared.errors import ConflictError
from moa_shared.sampling.settings import CHAT_DEFAULTS

from moa_client.conversation.events import LinkState, Titled
from moa_client.conversation.figures import LinkStatus
from moa_client.conversation.options import AnswerOptions
from moa_client.device.loading import Device
from moa_client.engine.engine import ClientEngine
from moa_client.history.reading import StoredConversation
from moa_client.history.recorder import HistoryRecorder, restored
from moa_client.host.calls import Calls
from moa_client.host.conversation_task import ConversationTask
from moa_client.host.publisher import Publisher, reasoning_marks
from moa_client.surface.messages import ConversationFacts
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
        """Continues a conversation that was kept; to be called before the first question.

        What of it no server has verified is verified at the next contact.
        """
        self.publisher.resume(stored)
        if self.publisher.answers:
            self.calls.turns = self._turns_with(self._system, self.publisher.answers[0].options.tools)
        turns = self.calls.turns
        self.engine.restore(
            restored(stored, lambda asked, options: turns.of(asked, options.results, options.reasoning_effort))
        )

    def set_system(self, system: str | None) -> None:
        """Sets the system prompt, before the first question."""
        if self.publisher.answers or self.task.is_answering:
            raise ConflictError("The conversation has begun.", hint="Begin another one for another system prompt.")
        turns = self._turns_with(system, self.calls.turns.tools)
        turns.check()
        self._system, self.calls.turns = system, turns

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
        return ConversationTurns(target.tokenizer, system, target.context_tokens, target.end_of_text, tools)
