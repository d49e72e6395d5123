"""The conversation, which the client owns, as a pure state machine.

State: every committed token with its provenance, the running answer, and the draft in flight: a tree below a
committed prefix, of which the committed tokens have reached a node. Invariants: committed tokens never change while an
answer runs; the draft's `epoch` grows whenever nodes are thrown away that the server may hold.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from moa_shared.errors import ProtocolError
from moa_shared.protocol.messages import AnswerSettings, Ask, Draft, Finish, Verdict
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.sampling.settings import Sampling, TokenChances
from moa_shared.tree import ROOT, DraftTree, StreamedTree, is_chain

from moa_client.conversation.events import Provenance
from moa_client.conversation.figures import Figures

NO_DRAFT = DraftTree((), ())
Turn = Callable[[Sequence[int]], Sequence[int]]  # the tokens to append to a conversation so that an answer begins


class Phase(Enum):
    IDLE = auto()
    ANSWERING = auto()


@dataclass(frozen=True, slots=True)
class VerdictEffect:
    """What a verdict changed.

    `tokens`: newly committed ones (none by a repeated verdict); `chances` and `writers`: of each, if they are told.
    `kept_draft`: the draft in flight still hangs below the newest one. `finish`: whether and why the answer ended.
    """

    tokens: tuple[int, ...]
    kept_draft: bool
    finish: Finish
    chances: tuple[TokenChances, ...] = ()
    writers: tuple[Provenance, ...] = ()


@dataclass(eq=False, slots=True)
class OpenAnswer:
    """An answer that is still wanted: nobody, or only this device, has ended it.

    Args:
        written: provisional tokens, after what is committed of it: what a reader sees as provisional.
        finish: why it has ended without the server; UNFINISHED: it has not.
        asked: the question's tokens when it was begun on provisional text.
        verified: tokens that the server has decided since the user learned that it has ended; `corrected`: provisional
            text was withdrawn since then.
        left: the user waits for it no longer, although it has not ended: the server continues it when it is back.
    """

    turn: Turn
    settings: AnswerSettings
    written: list[int] = field(default_factory=list)
    finish: Finish = Finish.UNFINISHED
    asked: list[int] = field(default_factory=list)
    verified: list[int] = field(default_factory=list)
    corrected: bool = False
    figures: Figures = field(default_factory=Figures)
    left: bool = False

    @property
    def has_ended(self) -> bool:
        return self.left or self.finish is not Finish.UNFINISHED


@dataclass(frozen=True, slots=True)
class ConversationState:
    """A conversation as it was kept: all committed tokens, their writers, and where each question begins.

    `unverified`: the answers that ended without the server and are not verified, oldest first; only the first one may
    have committed tokens. `is_begun`: the newest turn is its question.
    """

    tokens: Sequence[int]
    provenance: Sequence[Provenance]
    turns: Sequence[int]
    unverified: Sequence[OpenAnswer] = ()
    is_begun: bool = False


class DraftInFlight:
    """The draft that the server has or will have. `tokens`, `hashes`: of the conversation, as they are at any time."""

    def __init__(self, tokens: Sequence[int], hashes: PrefixHashes) -> None:
        self.epoch = 0
        self._tokens = tokens
        self._hashes = hashes
        self._base = 0
        self._whole = StreamedTree()
        self._node: int | None = None  # that the committed tokens have reached; None: they have left the tree
        self._below: tuple[DraftTree, tuple[int, ...]] | None = None  # what hangs there, if known

    @property
    def is_left(self) -> bool:
        """Whether the newest committed token is none of its nodes, nor what it began after."""
        return self._node is None

    @property
    def end(self) -> int:
        """Nodes of the whole tree, including those committed or contradicted since."""
        return self._whole.end

    @property
    def below(self) -> tuple[DraftTree, tuple[int, ...]]:
        """The nodes below the newest committed token, and their numbers in the whole tree after its own (-1: none)."""
        if self._below is None:
            tree, numbers = self._whole.below(self._node) if self._node is not None else (NO_DRAFT, ())
            self._below = tree, (ROOT if self._node is None else self._node, *numbers)
        return self._below

    @property
    def tree(self) -> DraftTree:
        """The nodes that hang below the newest committed token."""
        return self.below[0]

    def forget_nodes(self, sent: int) -> None:
        """Forgets the nodes that led to the newest committed token.

        `sent`: nodes that the server has; others stay, because a frame must name them.
        """
        if self._node is not None:
            self._whole.forget(min(self._node, sent))

    def propose(self, tree: DraftTree) -> Draft:
        """Replaces it by `tree`, below the newest committed token; what to send.

        An empty tree is a proposal too: it says that the client has nothing to guess.
        """
        self.drop()
        self._base = len(self._tokens)
        self._whole, self._node, self._below = StreamedTree(tree.tokens, tree.parents), ROOT, None
        return self.draft_message(0)

    def extend_draft(self, tokens: Sequence[int], parents: Sequence[int] | None = None) -> None:
        """Appends nodes (begins another draft below the newest token if that has left this one).

        `parents`: in the whole tree; None: a chain goes on.
        """
        if self._node is None:
            self.propose(NO_DRAFT)
        first = self.end
        added = range(first - 1, first - 1 + len(tokens)) if parents is None else parents
        for token, parent in zip(tokens, added, strict=True):
            self._whole.append(token, parent)
        self._below = None

    def draft_message(self, first: int) -> Draft:
        """The frame for nodes `first` and following; that of node 0 names the prefix."""
        tokens, parents = self._whole.since(first)
        prefix_hash = 0 if first else self._hashes.short_at(self._base)
        return Draft(self.epoch, self._base, prefix_hash, first, tokens, () if is_chain(parents, first) else parents)

    def follow(self, new: Sequence[int]) -> None:
        """Walks along newly committed tokens."""
        for token in new:
            child = self._whole.child_with(self._node, token) if self._node is not None else None
            if child is None:
                self.drop()
                return
            self._node, self._below = child, None

    def drop(self) -> None:
        if self.tree:
            self.epoch += 1
        self._whole, self._node, self._below = StreamedTree(), None, None


class Conversation:
    """The tokens of one conversation, and the answer under way.

    `vocab_size`: of the target; verdicts with other tokens are refused.
    """

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.phase = Phase.IDLE
        self.tokens: list[int] = []
        self.provenance: list[Provenance] = []
        self.turns: list[int] = []  # where each question begins
        self.hashes = PrefixHashes()
        self.in_flight = DraftInFlight(self.tokens, self.hashes)
        self.ask_id = 0  # of the newest question; a verdict names it
        self.answer_start = 0
        self.settings = AnswerSettings()
        self.traceparent = ""  # of the newest question's span

    # ------------------------------------------------------------ the user

    def ask(self, tokens: Sequence[int], settings: AnswerSettings) -> Ask:
        if self.phase is not Phase.IDLE:
            raise ProtocolError("the answer under way to end first", "another question")
        base = len(self.tokens)
        if base + len(tokens) == 0:
            raise ProtocolError("a prompt of at least one token", "none")
        self.turns.append(base)
        self._append(tokens, [Provenance.PROMPT] * len(tokens))
        self.answer_start = len(self.tokens)
        return self._begin(settings, base)

    def go_on(self, settings: AnswerSettings) -> Ask:
        """Continues the newest answer, which has ended, with settings under which it would not have."""
        if self.phase is not Phase.IDLE or not self.answer:
            raise ProtocolError("an answer that has ended", "none" if self.phase is Phase.IDLE else "one under way")
        return self._begin(settings, len(self.tokens))

    def _begin(self, settings: AnswerSettings, base: int) -> Ask:
        self.settings = settings
        self.phase = Phase.ANSWERING
        self.ask_id += 1
        self.in_flight.drop()
        return self.ask_from(base)

    def ask_from(self, base: int | None = None) -> Ask:
        """The Ask of the answer under way, with all committed tokens from `base` on; None: from its question on."""
        if self.phase is not Phase.ANSWERING:
            raise ProtocolError("an answer under way", "none")
        base = self.turns[-1] if base is None else base
        prefix_hash, tokens = self.hashes.at(base), tuple(self.tokens[base:])
        start, parent = self.answer_start, self.traceparent
        return Ask(self.ask_id, base, prefix_hash, tokens, self.settings, start, traceparent=parent)

    def keep(self, tokens: Sequence[int], writers: Sequence[Provenance]) -> None:
        """Ends the answer with text that no server has verified. `writers`: of each token."""
        self._append(tokens, writers)
        self.end()

    def restore(self, state: ConversationState) -> None:
        """Takes the place of one that was kept; its newest answer is under way if a server is still to decide it."""
        self.end()
        self._crop(0)
        self._append(state.tokens, state.provenance)
        self.turns = list(state.turns)
        if self.turns:
            start = self.turns[-1]
            while start < len(self.tokens) and self.provenance[start] is Provenance.PROMPT:
                start += 1
            self.answer_start = start
        if state.is_begun:
            self._begin(state.unverified[0].settings, self.turns[-1])

    def rewind(self, turns: int) -> None:
        """Keeps the first `turns` questions and their answers, fewer than there are."""
        self.end()
        self._crop(self.turns[turns])

    def end(self) -> None:
        """Ends the answer here, whatever the server thinks (it is gone, or the user stopped it)."""
        self.in_flight.drop()
        self.phase = Phase.IDLE

    def give_up(self) -> None:
        """Gives up the answer. A question that got none is taken back, so that another can be asked."""
        if self.phase is Phase.ANSWERING and not self.answer:
            self._crop(self.turns[-1])
        self.end()

    @property
    def sampling(self) -> Sampling:
        return self.settings.sampling.within(self.answer_start)

    @property
    def answer(self) -> Sequence[int]:
        return self.tokens[self.answer_start :]

    @property
    def answer_length(self) -> int:
        return max(0, len(self.tokens) - self.answer_start)

    # ------------------------------------------------------------ the server

    def commit_verdict(self, verdict: Verdict) -> VerdictEffect:
        """Takes in a verdict; a repeated one changes nothing, nor does one of an answer that has ended here."""
        in_flight = self.in_flight
        if verdict.ask != self.ask_id or self.phase is not Phase.ANSWERING:
            return VerdictEffect((), not in_flight.is_left, Finish.UNFINISHED)
        base, tokens, finish = verdict.base, verdict.tokens, verdict.finish
        held = len(self.tokens)
        if base > held:
            raise ProtocolError(f"a verdict from position {held} or before", f"one from {base}")
        if verdict.prefix_hash and self.hashes.short_at(base) != verdict.prefix_hash:
            raise ProtocolError(
                f"a verdict after tokens that hash to {self.hashes.short_at(base):08x}", f"{verdict.prefix_hash:08x}"
            )
        known = min(held - base, len(tokens))
        if list(tokens[:known]) != self.tokens[base : base + known]:
            raise ProtocolError("a verdict that repeats committed tokens unchanged", "other tokens")
        new, chances = tokens[known:], verdict.chances[known:]
        for token in (*new, *(token for each in chances for token in each.tokens)):
            if not 0 <= token < self.vocab_size:
                raise ProtocolError(f"tokens 0 to {self.vocab_size - 1}", f"{token}")
        if base + len(tokens) < held:
            finish = Finish.UNFINISHED  # a replay of something older, which has already ended
        limit = self.settings.max_tokens
        room = limit - self.answer_length
        if limit and len(new) >= room:  # the user may have stopped it sooner than the server knows of
            finish = finish if finish is not Finish.UNFINISHED and len(new) == room else Finish.MAX_TOKENS
            new = new[: max(0, room)]
        by_device = max(0, verdict.accepted - verdict.server_accepted - known)
        by_server = max(0, verdict.accepted - known) - by_device
        in_flight.follow(new)
        writers = [Provenance.DRAFT] * min(by_device, len(new))
        writers += [Provenance.SERVER] * min(by_server, len(new) - len(writers))
        writers += [Provenance.TARGET] * (len(new) - len(writers))
        self._append(new, writers)
        kept = not in_flight.is_left
        if finish is not Finish.UNFINISHED:
            self.end()
        return VerdictEffect(tuple(new), kept, finish, tuple(chances[: len(new)]), tuple(writers))

    # ------------------------------------------------------------ inside

    def _crop(self, length: int) -> None:
        del self.tokens[length:]
        del self.provenance[length:]
        self.hashes.crop(length)
        self.turns = [start for start in self.turns if start < length]
        self.answer_start = length

    def _append(self, tokens: Sequence[int], provenance: Sequence[Provenance]) -> None:
        self.tokens.extend(tokens)
        self.provenance.extend(provenance)
        self.hashes.extend(tokens)
