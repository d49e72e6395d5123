"""The conversation, which the client owns, as a pure state machine.

State: every committed token with its provenance, the running answer, and the draft in flight: a tree below a
committed prefix, of which the committed tokens have reached a node. Invariants: committed tokens never change while an
answer runs; `epoch` grows whenever draft nodes are thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from moa_shared.errors import ProtocolError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.messages import Ask, Draft, Verdict
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.sampling.settings import Sampling, TokenChances
from moa_shared.tree import ROOT, DraftTree, StreamedTree, is_chain

from moa_client.conversation.events import Provenance

NO_DRAFT = DraftTree((), ())


class Phase(Enum):
    IDLE = auto()
    ANSWERING = auto()


@dataclass(frozen=True, slots=True)
class VerdictEffect:
    """What a verdict changed.

    Args:
        tokens: newly committed tokens (empty for a repeated verdict).
        accepted: how many of them the draft in flight had proposed.
        kept_draft: whether the draft in flight still hangs below the newest committed token.
        finish: whether and why the answer ended.
        chances: of each of the tokens, if the server has told them.
    """

    tokens: tuple[int, ...]
    accepted: int
    kept_draft: bool
    finish: Finish
    chances: tuple[TokenChances, ...] = ()
    writers: tuple[Provenance, ...] = ()


Turn = Callable[[Sequence[int]], Sequence[int]]  # the tokens to append to a conversation so that an answer begins


@dataclass(eq=False, slots=True)
class Job:
    """One answer.

    Args:
        written: provisional tokens, after what is committed of this answer.
        finish: why the answer has ended without the server; UNFINISHED: it has not.
        asked: the question's tokens when the answer was begun on provisional text.
        verified: tokens that the server has decided since the user learned that the answer has ended.
        corrected: whether provisional text was withdrawn since then.
        shown: how many tokens were shown as provisional; `kept`: of these, how many have been committed.
        left: the user waits for it no longer, although it has not ended: the server continues it when it is back.
    """

    turn: Turn
    settings: AnswerSettings
    written: list[int] = field(default_factory=list)
    finish: Finish = Finish.UNFINISHED
    asked: list[int] = field(default_factory=list)
    verified: list[int] = field(default_factory=list)
    corrected: bool = False
    shown: int = 0
    kept: int = 0
    left: bool = False

    @property
    def has_ended(self) -> bool:
        return self.left or self.finish is not Finish.UNFINISHED


@dataclass(frozen=True, slots=True)
class ConversationState:
    """A conversation as it was kept.

    Args:
        tokens: all committed ones; `provenance`: of each of them.
        unverified: the answers that ended without the server and are not verified, oldest first. Only the first one
            may have committed tokens.
        is_begun: the newest turn is the question of the first of them.
    """

    tokens: Sequence[int]
    provenance: Sequence[Provenance]
    turns: Sequence[int]
    unverified: Sequence[Job] = ()
    is_begun: bool = False


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
        self.epoch = 0
        self.ask_id = 0  # of the newest question; a verdict names it
        self.answer_start = 0
        self.settings = AnswerSettings()
        self._base = 0
        self._tree = StreamedTree()
        self._node: int | None = None
        self._copies: set[int] = set()  # nodes that repeat earlier text
        self._below: tuple[DraftTree, tuple[int, ...]] | None = None  # the newest token, if known
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
        self.settings = settings
        self.phase = Phase.ANSWERING
        self.ask_id += 1
        self.drop_draft()
        return self._ask(base, tokens)

    def go_on(self, settings: AnswerSettings) -> Ask:
        """Continues the newest answer, which has ended, with settings under which it would not have."""
        if self.phase is not Phase.IDLE or not self.answer:
            raise ProtocolError("an answer that has ended", "none" if self.phase is Phase.IDLE else "one under way")
        self.settings = settings
        self.phase = Phase.ANSWERING
        self.ask_id += 1
        self.drop_draft()
        return self._ask(len(self.tokens), ())

    def resume(self) -> Ask:
        """The Ask that continues the answer under way, on a server that was opened with all committed tokens."""
        if self.phase is not Phase.ANSWERING:
            raise ProtocolError("an answer to resume", "none under way")
        self.drop_draft()
        return self._ask(len(self.tokens), ())

    def repeat(self) -> Ask:
        """The Ask of the answer under way as first sent, with everything committed of it."""
        if self.phase is not Phase.ANSWERING:
            raise ProtocolError("an answer under way", "none")
        base = self.turns[-1]
        return self._ask(base, self.tokens[base:])

    def _ask(self, base: int, tokens: Sequence[int]) -> Ask:
        prefix_hash, settings, start = self.hashes.at(base), self.settings, self.answer_start
        return Ask(self.ask_id, base, prefix_hash, tuple(tokens), settings, start, traceparent=self.traceparent)

    def keep(self, tokens: Sequence[int], finish: Finish, writers: Sequence[Provenance] = ()) -> None:
        """Commits text that no server has verified.

        `writers` wrote each token, this device if there are none; `finish` says whether and why the answer ends there.
        """
        if self.phase is not Phase.ANSWERING:
            raise ProtocolError("an answer to add to", "none under way")
        self.drop_draft()
        self._append(tokens, writers or [Provenance.ALONE] * len(tokens))
        if finish is not Finish.UNFINISHED:
            self.end()

    def restore(self, state: ConversationState) -> None:
        """Takes the place of one that was kept; its newest answer is under way if a server is still to decide it."""
        self.reset()
        self.tokens, self.provenance, self.turns = list(state.tokens), list(state.provenance), list(state.turns)
        self.hashes.extend(self.tokens)
        if self.turns:
            start = self.turns[-1]
            while start < len(self.tokens) and self.provenance[start] is Provenance.PROMPT:
                start += 1
            self.answer_start = start
        if state.is_begun:
            self.settings = state.unverified[0].settings
            self.phase = Phase.ANSWERING
            self.ask_id += 1

    def rewind(self, turns: int) -> None:
        """Keeps the first `turns` questions and their answers, fewer than there are."""
        self.end()
        self._crop(self.turns[turns])

    def reset(self) -> None:
        """Forgets everything but the epoch and how many questions were asked."""
        self.end()
        self._crop(0)

    def end(self) -> None:
        """Ends the answer here, whatever the server thinks (it is gone, or the user stopped it)."""
        self.drop_draft()
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

    # ------------------------------------------------------------ the draft in flight

    @property
    def draft_nodes(self) -> int:
        """Nodes of the whole tree in flight, including those committed or contradicted since."""
        return self._tree.end

    @property
    def draft_numbers(self) -> tuple[int, ...]:
        """Number in the whole tree of each node of `draft`, after that of the newest committed token (-1: the root)."""
        return (ROOT,) if self._node is None else (self._node, *self._subtree(self._node)[1])

    @property
    def draft(self) -> DraftTree:
        """The draft nodes that hang below the newest committed token."""
        return NO_DRAFT if self._node is None else self._subtree(self._node)[0]

    def forget_nodes(self, sent: int) -> None:
        """Forgets the nodes of the draft in flight that led to the newest committed token.

        `sent`: nodes that the server has; others stay, because a frame must name them.
        """
        if self._node is not None:
            self._tree.forget(min(self._node, sent))

    def propose(self, tree: DraftTree) -> Draft:
        """Replaces the draft in flight by `tree`, below the newest committed token; what to send.

        An empty tree is a proposal too: it says that the client has nothing to guess.
        """
        if self.draft:
            self.epoch += 1  # nodes that the server may hold are thrown away
        self._base = len(self.tokens)
        self._tree, self._node, self._below = StreamedTree(tree.tokens, tree.parents), ROOT, None
        self._copies.clear()
        return self.draft_message(0)

    def extend_draft(
        self, tokens: Sequence[int], parents: Sequence[int] | None = None, copied: Collection[int] = ()
    ) -> None:
        """Appends nodes to the draft in flight (starts one below the newest token if there is none).

        Args:
            parents: node numbers in the whole tree; None: a chain that continues from the newest node.
            copied: which of the tokens, counted from 0, repeat earlier text.
        """
        if self._node is None:
            self._base = len(self.tokens)
            self._tree, self._node = StreamedTree(), ROOT
            self._copies.clear()
        first = self._tree.end
        added = range(first - 1, first - 1 + len(tokens)) if parents is None else parents
        for token, parent in zip(tokens, added, strict=True):
            self._tree.append(token, parent)
        self._copies.update(first + index for index in copied)
        self._below = None

    def draft_message(self, first: int) -> Draft:
        """The frame for nodes `first` and following of the tree in flight; that of node 0 names the prefix."""
        tokens, parents = self._tree.since(first)
        return Draft(
            self.epoch,
            self._base,
            0 if first else self.hashes.short_at(self._base),
            first,
            tokens,
            () if is_chain(parents, first) else parents,
        )

    # ------------------------------------------------------------ the server

    def commit_verdict(self, verdict: Verdict) -> VerdictEffect:
        """Takes in a verdict; a repeated one changes nothing, nor does one of an answer that has ended here."""
        if verdict.ask != self.ask_id or self.phase is not Phase.ANSWERING:
            return VerdictEffect((), 0, self._node is not None, Finish.UNFINISHED)
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
        path = self._follow(new)
        writers = [Provenance.COPY if node in self._copies else Provenance.DRAFT for node in path[:by_device]]
        writers += [Provenance.DRAFT] * (min(by_device, len(new)) - len(writers))
        writers += [Provenance.SERVER] * min(by_server, len(new) - len(writers))
        writers += [Provenance.TARGET] * (len(new) - len(writers))
        self._append(new, writers)
        kept = self._node is not None
        if finish is not Finish.UNFINISHED:
            self.end()
        elif not kept:
            self.drop_draft()
        return VerdictEffect(tuple(new), len(path), kept, finish, tuple(chances[: len(new)]), tuple(writers))

    # ------------------------------------------------------------ inside

    def _follow(self, new: Sequence[int]) -> list[int]:
        """Walks the draft along newly committed tokens; the nodes for those that it held."""
        path: list[int] = []
        for token in new:
            child = self._tree.child_with(self._node, token) if self._node is not None else None
            if child is None:
                if self._node is not None and self.draft:
                    self.epoch += 1
                self._node = self._below = None
                return path
            self._node, self._below = child, None
            path.append(child)
        return path

    def drop_draft(self) -> None:
        if self._node is not None and self.draft:
            self.epoch += 1
        self._tree, self._node, self._below = StreamedTree(), None, None
        self._copies.clear()

    def _subtree(self, node: int) -> tuple[DraftTree, tuple[int, ...]]:
        if self._below is None:
            self._below = self._tree.below(node)
        return self._below

    def _crop(self, length: int) -> None:
        """Forgets the turns from position `length` on."""
        del self.tokens[length:]
        del self.provenance[length:]
        self.hashes.crop(length)
        self.turns = [start for start in self.turns if start < length]
        self.answer_start = length

    def _append(self, tokens: Sequence[int], provenance: Sequence[Provenance]) -> None:
        self.tokens.extend(tokens)
        self.provenance.extend(provenance)
        self.hashes.extend(tokens)
