"""A user's device with a script in the drafter's place; everything else is the client program's own.

Pure: time and what is to happen later are the caller's, so it runs in virtual time as on an event loop. State: the
conversation and the draft in flight.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from moa_client.conversation.conversation import Conversation, Phase
from moa_client.drafting.online import OnlineDrafting
from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.streamed import DraftCompleted, DrafterResult, DraftExtended, DraftStep, ResultInbox
from moa_client.memory.plan import MemoryPlan
from moa_shared.drafting import Growth
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Ack, Ask, Draft, Verdict
from moa_shared.sampling.settings import Sampling
from moa_shared.tree.draft_tree import DraftTree

Guess = Callable[[int, Sequence[int]], int]
After = Callable[[float, Callable[[], None]], object]


@dataclass(slots=True)
class ScriptedDrafter:
    """Drafts chains that `guess` knows; each step takes a time."""

    guess: Guess  # the token after so many committed tokens and a chain of draft tokens
    draft_ms: float  # of a step
    after: After  # calls a function in so many milliseconds
    round_length: int  # of a whole draft
    inbox: ResultInbox  # takes results
    busy: bool = False
    drafted_nodes: int = 0

    def grow(self, step: DraftStep, sampling: Sampling) -> None:
        self.busy = True
        self.after(self.draft_ms, partial(self._end_step, step))

    def draft(self, committed: int, sampling: Sampling) -> None:
        self.busy = True
        self.after(self.draft_ms * self.round_length, partial(self._end_round, committed))

    def _end_step(self, step: DraftStep) -> None:
        self.busy = False
        self.drafted_nodes += 1
        token = self.guess(step.committed, step.draft.tokens)
        self.inbox.post(DraftExtended(step, Growth((token,), (len(step.draft) - 1,)), self.draft_ms))

    def _end_round(self, committed: int) -> None:
        self.busy = False
        self.drafted_nodes += self.round_length
        tokens: list[int] = []
        for _ in range(self.round_length):
            tokens.append(self.guess(committed, tokens))
        self.inbox.post(DraftCompleted(committed, DraftTree.chain(tokens)))


class ScriptedDevice:
    """The client's end of one answer.

    Args:
        send: takes a frame for the server.
        clock: milliseconds.
        new_drafter: makes its drafter, which posts to it; None: it has none.
        settings: how to draft.
        rtt_ms: what its link monitor would say; 0: nothing.
    """

    def __init__(
        self,
        vocab_size: int,
        send: Callable[[Draft | Ack], None],
        clock: Callable[[], float],
        new_drafter: Callable[[ResultInbox], ScriptedDrafter] | None,
        settings: DraftingSettings,
        rtt_ms: float = 0.0,
    ) -> None:
        self.conversation = Conversation(vocab_size)
        self.drafter = None if new_drafter is None else new_drafter(self)
        memory = MemoryPlan(None, {}, Codec.INT4)  # the script needs none, so nothing waits for it
        self.online = OnlineDrafting(settings, self.conversation, self.drafter, memory)
        self.online.on_opened(server_drafts=False)
        if rtt_ms:
            self.online.window.rtt_ms.add(rtt_ms)
        self._send = send
        self._clock = clock

    @property
    def is_answering(self) -> bool:
        return self.conversation.phase is Phase.ANSWERING

    def ask(self, prompt: Sequence[int], settings: AnswerSettings) -> Ask:
        ask = self.conversation.ask(prompt, settings)
        self.online.on_asked()
        self.online.mark_synced()
        return ask

    def on_verdict(self, verdict: Verdict) -> tuple[int, ...]:
        """Takes in a verdict and drafts on; returns the tokens that are new."""
        now_ms = self._clock()
        progress = self.online.on_verdict(now_ms, verdict)
        self._draft_on(now_ms)
        return progress.tokens

    def _draft_on(self, now_ms: float) -> None:
        for message in self.online.draft_on(now_ms):
            self._send(message)

    def post(self, result: DrafterResult) -> None:
        """Takes in a result of the drafter, and drafts on."""
        now_ms = self._clock()
        if isinstance(result, DraftExtended):
            self.online.on_extended(now_ms, result)
        elif isinstance(result, DraftCompleted) and (draft := self.online.on_completed(result)) is not None:
            self._send(draft)
        self._draft_on(now_ms)
