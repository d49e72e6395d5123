"""Who writes and who waits: the device's drafter with a server, without one, and while its text is held back."""

from __future__ import annotations

from moa_client.conversation.answer_queue import AnswerQueue, EndRule
from moa_client.conversation.conversation import Conversation
from moa_client.drafting.device_drafting import DeviceDrafting
from moa_client.drafting.drafters import ClientDrafter, LookupDrafter
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.inbox import Inbox
from moa_client.link.availability import Availability
from moa_shared.errors import UnavailableError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Plane

SILENCE_MS = 60_000.0
AUTO = StandaloneRule("auto", least_chance=0.5, end_ms=3_000.0, leave_ms=20_000.0)


class Writer:
    """A device after a question.

    Args:
        is_read: the server has begun the answer.
    """

    def __init__(self, rule: StandaloneRule, *, drafter: ClientDrafter | None = None, is_read: bool = False) -> None:
        self.answers = AnswerQueue(Conversation(50), EndRule(frozenset({9}), 1000, str))
        self.answers.begin(lambda _: [1, 2, 3], AnswerSettings(max_tokens=20))
        if is_read:
            self.answers.conversation.keep((8,), Finish.UNFINISHED)
        self.availability = Availability(SILENCE_MS, rule.end_ms)
        settings, planes = DraftingSettings(standalone=rule), {Plane.REUSED_STATE: 4, Plane.MEMORY: 4}
        self.drafting = DeviceDrafting(
            drafter, planes, 0.0, Codec.INT4, settings, self.answers, self.availability, Inbox()
        )

    def lose(self, now: float) -> None:
        """The server is away from now on."""
        self.availability.on_lost(UnavailableError("Gone."), broke=False, is_expected=True)
        self.availability.outages.observe(now, is_served=False)


def test_nothing_is_held_back_while_a_server_decides() -> None:
    writer = Writer(AUTO, drafter=LookupDrafter(4))
    writer.drafting.standalone.write_on(0.0)
    assert not writer.drafting.is_holding_back
    assert writer.drafting.wake_ms(0.0) is None
    writer.drafting.memory.hold_until_ms = 5.0
    assert writer.drafting.wake_ms(0.0) == 5.0
    writer.drafting.close()


def test_a_drafter_that_servers_have_no_memory_for_only_writes() -> None:
    writer = Writer(AUTO, drafter=LookupDrafter(4))
    assert writer.drafting.lets_server_run_ahead
    writer.drafting.stop_for_servers()
    assert writer.drafting.memory.offered == []
    assert writer.drafting.standalone.can_write
    writer.drafting.close()
