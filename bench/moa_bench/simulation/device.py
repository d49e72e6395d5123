"""A user's device with a script in the drafter's place; everything else is the client program's own.

Pure: time and what is to happen later are the caller's, so it runs in virtual time as on an event loop. State: the
conversation and the draft in flight.
"""

from collections.abc import Callable, Sequence
from functools import partial

from moa_client.conversation.conversation import Conversation, Phase
from moa_client.drafting.online import OnlineDrafting
from moa_client.drafting.results import DraftCompleted, DrafterResult, DraftExtended, ResultInbox
from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.streamed import DraftStep
from moa_client.memory.plan import MemoryPlan
from moa_shared.drafting import Growth
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Ack, Ask, Draft, Verdict
from moa_shared.sampling.settings import Sampling
from moa_shared.tree.draft_tree import DraftTree

Guess = Callable[[int, Sequence[int]], int]
After = Callable[[float, Callable[[], None]], object]


class ScriptedDrafter:
    """Drafts chains that `guess` knows; each step takes a time.

    Args:
        guess: the token after so many committed tokens and a chain of draft tokens.
        draft_ms: of a step.
        after: calls a function in so many milliseconds.
        inbox: takes results.
        round_length: of a whole draft.
    """

    def __init__(
        self,
        guess: Guess,
        draft_ms: float,
        after: After,
        inbox: ResultInbox,
        round_length: int = 1,
    ) -> None:
        self.busy = False
        self.drafted_nodes = 0
        self._guess = guess
        self._draft_ms = draft_ms
        self._after = after
        self._inbox = inbox
        self._round_length = round_length

    def grow(self, step: DraftStep, sampling: Sampling) -> None:
        self.busy = True
        self._after(self._draft_ms, partial(self._end_step, step))

    def draft(self, committed: int, sampling: Sampling) -> None:
        self.busy = True
        self._after(self._draft_ms * self._round_length, partial(self._end_round, committed))

    def _end_step(self, step: DraftStep) -> None:
        self.busy = False
        self.drafted_nodes += 1
        token = self._guess(step.committed, step.draft.tokens)
        self._inbox.post(DraftExtended(step, Growth((token,), (len(step.draft) - 1,)), self._draft_ms))

    def _end_round(self, committed: int) -> None:
        self.busy = False
        self.drafted_nodes += self._round_length
        tokens: list[int] = []
        for _ in range(self._round_length):
            tokens.append(self._guess(committed, tokens))
        self._inbox.post(DraftCompleted(committed, DraftTree.chain(tokens)))


class ScriptedDevice:
    """The client's end of one answer.

    Args:
        send: takes a frame for the server.
        clock: milliseconds.
        guess, draft_ms, after, round_length: as `ScriptedDrafter`; without `guess` nothing is drafted.
        settings: how to draft.
        plain_ms: of a plain step, as the server reports; 0: not known.
        rtt_ms: what its link monitor would say; 0: nothing.
    """

    def __init__(
        self,
        vocab_size: int,
        send: Callable[[Draft | Ack], None],
        clock: Callable[[], float],
        guess: Guess | None,
        draft_ms: float,
        after: After,
        settings: DraftingSettings,
        *,
        plain_ms: float = 0.0,
        rtt_ms: float = 0.0,
        round_length: int = 1,
    ) -> None:
        self.conversation = Conversation(vocab_size)
        self.drafter = None
        if guess is not None:
            self.drafter = ScriptedDrafter(guess, draft_ms, after, self, round_length)
        memory = MemoryPlan(None, {}, Codec.INT4)  # the script needs none, so nothing waits for it
        self.online = OnlineDrafting(settings, self.conversation, self.drafter, memory, plain_ms)
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
