"""The host of a device's conversations: it reaches the server, loads this device's half, and opens conversations.

All share the link, the drafter's weights and the thread that it runs on, where drafters take turns, one step each.
State: the device as the next conversation gets it, and the conversations that are open.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from moa.v1 import moa_pb2 as pb
from moa_shared.drafter.companion import remember_agreement
from moa_shared.errors import MismatchError, MoaError, NotFoundError, UnavailableError
from moa_shared.models.files import RAW_TEXT_ONLY
from moa_shared.models.storage.cache import cache_root
from moa_shared.programs.progress import Progress
from moa_shared.programs.run_loop import run_reporting
from moa_shared.protocol.memory_codec import Codec

from moa_client.conversation.conversation import Conversation
from moa_client.conversation.events import LinkState
from moa_client.conversation.figures import LinkStatus
from moa_client.device.loading import Device, adopt, load_device, refit, trim_heap
from moa_client.device.sources import (
    AUTO,
    Sources,
    find_local_sources,
    find_sources,
    means_served,
    possible_companion,
    stand_in,
    take_offered,
)
from moa_client.drafting.drafter_thread import DrafterExecutor
from moa_client.drafting.settings import READING_SPEED, DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_client.history.recorder import HistoryRecorder
from moa_client.host.text_conversation import TextConversation
from moa_client.link.fleet import Fleet
from moa_client.link.stream import Observer
from moa_client.settings import ClientSettings, read_kept
from moa_client.surface.messages import ConversationFacts
from moa_client.tools.tool import ToolBox

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reached:
    """What the first call to the server has found."""

    served: pb.DescribeResponse | None = None  # None: the server is absent
    rtt_ms: float | None = None
    absent: UnavailableError | None = None  # why; None: it is there, or the user wants none


@dataclass(frozen=True, slots=True)
class Started:
    device: Device
    reached: Reached
    offer: str = ""  # a companion that would fit, as `moa-client companion set` takes it; empty: none, or there is one


async def reach(settings: ClientSettings, fleet: Fleet) -> Reached:
    """Asks the server what it serves, unless the user wants none."""
    if settings.offline:
        return Reached()
    try:
        served = await fleet.describe()
    except UnavailableError as error:
        return Reached(absent=error)
    for left_out in fleet.skipped:
        log.warning(left_out)
    return Reached(served, fleet.shown.rtt_ms)


async def find(settings: ClientSettings, fleet: Fleet, reached: Reached, progress: Progress) -> Sources:
    """The files of this device's half; what is missing is fetched."""
    if reached.served is not None:
        if reached.served.raw_text_only:  # programs may ask for that
            log.warning("%s has no chat template: %s.", reached.served.identity.target_id, RAW_TEXT_ONLY)
        sources = await find_sources(settings, fleet, reached.served, progress)
        if settings.companion == AUTO:
            try:
                return replace(sources, companion=await take_offered(settings, fleet, reached.served, progress))
            except MoaError as error:
                _do_without(error, progress)
        return sources
    return await run_reporting(partial(_find_standalone, settings, reached.absent), progress, "files")


def _do_without(error: MoaError, progress: Progress) -> None:
    said = f"{error} So there is no companion."
    progress.note(said)
    log.warning("%s", said)  # of a daemon, which shows no progress


def load(settings: ClientSettings, reached: Reached, sources: Sources, progress: Progress) -> Started:
    try:
        device = load_device(settings, sources.served, progress, sources, reached.rtt_ms)
    except MoaError as error:
        is_named = settings.companion not in ("", AUTO)
        if not isinstance(error, MismatchError) or not settings.offline or settings.model or not is_named:
            if not is_named or settings.companion != read_kept():
                raise
            _do_without(error, progress)  # the one that is kept was chosen for another model, or is gone
            return load(replace(settings, companion=""), reached, sources, progress)
        sources = stand_in(settings, None, progress)  # who wants no server may talk to any model
        progress.note(f"{error.message} This chat is with {sources.files.target_id} alone.")
        device = load_device(settings, sources.served, progress, sources, None)
    device.target.tokenizer.prepare()
    trim_heap()
    offer = possible_companion(settings, reached.served, sources.files) if device.companion is None else ""
    return Started(device, reached, offer)


def _find_standalone(settings: ClientSettings, absent: UnavailableError | None, progress: Progress) -> Sources:
    writes = settings.companion or settings.drafter not in ("lookup", "none")
    sources = find_local_sources(settings, progress) if writes else None
    is_named = settings.companion not in ("", AUTO)
    if sources is not None and (sources.drafters or sources.companion or is_named or not means_served(settings)):
        return sources
    raise absent or NotFoundError(
        "There is no drafter on this device to write with.", hint="Connect to a server once to fetch one."
    )


class Host:
    """Opens conversations over one link. `observer`: makes what is told the messages of a conversation."""

    def __init__(
        self, settings: ClientSettings, link: Fleet, started: Started, observer: Callable[[str], Observer] | None = None
    ) -> None:
        self.settings = settings
        self.link = link
        self.device = started.device
        self.observer = observer
        self.conversations: list[TextConversation] = []
        self._reached = started.reached
        self._offer = started.offer
        self.is_offline = settings.offline
        self.used_at = 0.0  # when another one than that at home was asked for, monotonic
        self.on_adopted: Callable[[], None] = lambda: None  # called when the device's target is known at last
        self._executor = DrafterExecutor()

    def converse(
        self,
        *,
        is_read: bool,
        lasts: bool = True,
        for_program: bool = False,
        facts: ConversationFacts = ConversationFacts(),  # noqa: B008 (it is frozen)
        system: str | None = None,
        make_journal: Callable[[Conversation], HistoryRecorder] | None = None,
        box: ToolBox | None = None,
    ) -> TextConversation:
        """Begins a conversation.

        Args:
            is_read: by a person, as it comes; `lasts`: for more than one answer.
            for_program: which ends an answer that has waited for the server for too long, and reads marks of reasoning
                from tokens, so that special ones are not in the text.
            facts: its names; none: it is not kept.
            system: the system prompt; None: the model's own.
            make_journal: makes what keeps it; None: nothing is kept.
            box: the tools that it offers; None: none.
        """
        engine = self.engine(facts.identifier, is_read=is_read, lasts=lasts, for_program=for_program)
        reached = self._reached
        absent = reached.absent.message if reached.absent is not None else "You are offline."
        facts = replace(facts, absent=absent if reached.served is None else "", offer=self._offer)
        journal = make_journal(engine.conversation) if make_journal is not None else None
        conversation = TextConversation(
            engine,
            facts,
            system,
            journal,
            self.settings.idle_seconds if lasts else math.inf,
            box,
            spells_marks=not for_program,
        )
        self.conversations.append(conversation)
        return conversation

    def engine(
        self, conversation: str, *, is_read: bool = True, lasts: bool = True, for_program: bool = False
    ) -> ClientEngine:
        """An engine for the conversation of this identifier; the others are those of `converse`."""
        device, settings, reached = self.device, self.settings, self._reached
        patience = settings.silence_seconds if is_read else max(settings.standalone_seconds, settings.settle_seconds)
        standalone = StandaloneRule(
            settings.standalone,
            tokens_per_s=READING_SPEED if is_read else 0.0,
            end_ms=1e3 * settings.standalone_seconds,
            leave_ms=math.inf if for_program else 1e3 * patience,
        )
        engine = ClientEngine(
            self.link,
            device,
            int(device.target.files.config["vocab_size"]),
            Codec[settings.codec.upper()],
            DraftingSettings(settings.drafting, tree=settings.mode == "tree", standalone=standalone),
            offline=self.is_offline or reached.served is None,
            refit=partial(refit, settings, self.link) if lasts else None,  # begins with the next question
            adopt=self._adopt,
            executor=self._executor,
        )
        if self.observer is not None:
            engine.connection.traffic.observe = self.observer(conversation)
        if reached.absent is not None and not self.is_offline:
            engine.go_online()
        return engine

    def status(self) -> LinkStatus:
        if (newest := self._newest) is not None:
            return newest.engine.status
        reached = self._reached
        state = LinkState.OFFLINE if reached.served is None else LinkState.GOOD
        return LinkStatus(state, reached.rtt_ms, 0.0, 0.0, 0, 0, server=self.link.shown.address)

    @property
    def reason(self) -> str:
        """Why the newest link is as it is, for a person; empty: there is nothing to say."""
        if (newest := self._newest) is not None:
            return newest.publisher.link_reason
        return self._reached.absent.message if self._reached.absent is not None else ""

    def set_offline(self, is_offline: bool) -> None:
        """The user's wish, for the conversations that are open and those to come."""
        self.is_offline = is_offline
        for conversation in self.conversations:
            engine = conversation.engine
            (engine.go_offline if is_offline else engine.go_online)()

    @property
    def _newest(self) -> TextConversation | None:
        return max(self.conversations, key=lambda conversation: conversation.task.asked_at, default=None)

    async def leave(self, conversation: TextConversation) -> None:
        if self.release(conversation):
            await conversation.close()

    def release(self, conversation: TextConversation) -> bool:
        """Has it no more, whoever has it then; False: it did not have it."""
        if conversation not in self.conversations:
            return False
        self.conversations.remove(conversation)
        if (companion := self.device.companion) is not None:  # for the next start: how often it was right
            root, target = cache_root(self.settings.cache_dir), self.device.target.files.fingerprint
            remember_agreement(root, companion.fingerprint, target, companion.agreement)
        return True

    async def close(self) -> None:
        await asyncio.gather(*map(self.leave, tuple(self.conversations)))
        self._executor.close()

    async def _adopt(self, served: pb.DescribeResponse, device: Device) -> Device:
        """The device for the server's target, which conversations that a companion has begun continue with."""
        adopted = await adopt(self.settings, self.link, served, device)
        if self.device.target.stands_in:
            self.device = adopted
            self.on_adopted()
        return adopted
