"""How a device drafts for one conversation: its drafter on a thread, that drafter's memory, and both ways to draft."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Ack, Draft, Plane
from moa_shared.protocol.prefix_hash import PrefixHashes

from moa_client.conversation.answer_queue import AnswerQueue
from moa_client.drafting.drafter_executor import DrafterExecutor
from moa_client.drafting.drafter_thread import DrafterThread
from moa_client.drafting.drafters import ClientDrafter
from moa_client.drafting.online import OnlineDrafting
from moa_client.drafting.results import Result
from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.standalone import StandaloneDrafting
from moa_client.memory.plan import MemoryPlan


class DeviceDrafting:
    """The drafter, its memory, and drafting with and without a server.

    Args:
        drafter: None: the server answers by plain steps.
        planes: numbers of a row of each plane of memory that the drafter reads.
        plain_ms: time of a plain step, as the server reports it; 0: not known.
        codec: of memory, the best one.
        send: queues a message for the server.
        post: takes the drafter's results.
        thread: shared with other conversations; None: one of its own.
    """

    def __init__(
        self,
        drafter: ClientDrafter | None,
        planes: Mapping[Plane, int],
        plain_ms: float,
        codec: Codec,
        settings: DraftingSettings,
        answers: AnswerQueue,
        send: Callable[[Draft | Ack], None],
        post: Callable[[Result], None],
        thread: DrafterExecutor | None = None,
    ) -> None:
        self._thread = DrafterThread(drafter, post, thread) if drafter is not None else None
        reads_memory = drafter is not None and drafter.reads_memory
        remember = self._thread.remember if self._thread is not None and reads_memory else None
        self.memory = MemoryPlan(remember, planes, codec)
        drafts = self._thread if settings.device_drafts else None
        self.online = OnlineDrafting(settings, answers.conversation, drafts, self.memory, send, plain_ms)
        self.standalone = StandaloneDrafting(answers, self._thread, self.tell, settings.standalone)
        self.lets_server_run_ahead = drafter is None or settings.server_runs_ahead

    def tell(self, text: Sequence[int], hashes: PrefixHashes | None = None) -> None:
        """Gives the drafter the text; memory rows of what it must forget are dropped too."""
        if self._thread is not None:
            self.memory.crop(self._thread.tell(text, hashes))

    def restart(self) -> None:
        """Called when the text under the drafter's work has changed: what it is making is out of date."""
        self.online.restart()
        self.standalone.restart()

    def stop_for_servers(self) -> None:
        """The drafter only writes without a server: no server has memory for it any more."""
        self.memory.stop()
        self.online.stop()
        self.lets_server_run_ahead = True

    def close(self) -> None:
        """Lets the drafter end what it is doing; its results are no longer posted."""
        if self._thread is not None:
            self._thread.close()
