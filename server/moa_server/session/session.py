"""One conversation on the server, as a pure state machine: what is committed, what to feed the target next.

State: committed tokens and their hashes, how many of them the KV cache holds, the running answer, the pending draft.
Invariants: cached < len(tokens) while an answer runs (the newest token is not in the cache); a StepPlan whose `version`
is no longer the session's changes nothing. No I/O, no clock, no torch: the engine runs plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING

import numpy as np
from moa_shared.errors import ContextLengthError, ProtocolError
from moa_shared.protocol.messages import AnswerSettings, Ask, Draft, Finish, FinishRule, Verdict
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.sampling.settings import TokenChances
from moa_shared.tree import DraftTree, check_tokens

from moa_server.session.state_places import StatePlaces
from moa_server.session.verification import NO_DRAFT, PendingDraft, StepPlan, Verification

if TYPE_CHECKING:
    from moa_shared.constraints.constrained_text import ConstrainedText


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What the server allows one session."""

    context_tokens: int  # the most of a conversation
    vocab_size: int  # of the target
    draft_nodes: int = 64  # the most of one verification: holds the paper's tree of 62
    prefill_chunk: int = 256  # tokens of a prompt in one forward: keeps other sessions' wait near 0.3 s on one core
    run_ahead_tokens: int = 128  # how far the server goes beyond what a silent client has acknowledged
    checkpoint_tokens: int = 0  # as of the target


class SessionPhase(Enum):
    IDLE = auto()
    ANSWERING = auto()


# Ends that the target or the limits decided: asked again, the answer would end there again.
ENDED_BY_RULE = (Finish.END_OF_TEXT, Finish.MAX_TOKENS, Finish.STOP, Finish.CONTEXT, Finish.LOOP)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Tokens of an answer that were chosen before the client asked to continue it."""

    base: int  # position of the first of them
    tokens: tuple[int, ...] = ()
    finish: Finish = Finish.UNFINISHED  # whether and why the answer has ended with them
    repeats: bool = False  # this stream has sent the same Ask before; its verdicts are on their way
    chances: tuple[TokenChances, ...] = ()  # of the tokens, where they are wanted

    @property
    def is_news(self) -> bool:
        """Whether the client must be told: it lacks tokens, or waits for the end of an answer that has ended."""
        return bool(self.tokens) or self.finish is not Finish.UNFINISHED


class Session:
    """The server's cache of one conversation.

    `end_of_text`: token ids that end an answer. `decode`: text of some tokens, for stop strings. `run_ahead`: whether
    to step when no draft has arrived.
    """

    def __init__(
        self,
        limits: SessionLimits,
        *,
        end_of_text: frozenset[int],
        decode: Callable[[Sequence[int]], str],
        run_ahead: bool,
    ) -> None:
        self.limits = limits
        self.run_ahead = run_ahead
        self.phase = SessionPhase.IDLE
        self.tokens: list[int] = []
        self.hashes = PrefixHashes()
        self.cached = 0
        self.states = StatePlaces(limits.checkpoint_tokens)
        self.ask_id = 0  # the client's number of the newest question
        self.answer_start = 0
        self.version = 0
        self.pending = PendingDraft()
        self.acknowledged = 0
        self._end_of_text = end_of_text
        self._decode = decode
        self._settings = AnswerSettings()
        self._rule = self._new_rule(self._settings, 0)
        self._form: ConstrainedText | None = None
        self._given: Sequence[int] = ()  # the answer, where the target is only asked how likely it finds it
        self._chances: list[TokenChances] = []  # of the newest tokens of the answer, where they are wanted
        self._first_step = False
        self._finish = Finish.UNFINISHED
        self.cache_version = 0  # grows when what the cache holds is given up
        self.stateless_from: int | None = None  # from this position on no states are kept; None: they all are
        self._resumable = False  # the answer is as the target left it, and a client has just come back

    @property
    def unread(self) -> int:
        """Tokens that the KV cache does not hold; 1 in an answer under way."""
        return len(self.tokens) - self.cached

    @property
    def reads(self) -> bool:
        """Whether the next step reads so much of a prompt, or of a given answer, that it takes long."""
        return bool(self._given) or self.unread > min(self.limits.draft_nodes, self.limits.prefill_chunk)

    @property
    def most_tokens(self) -> int:
        """The most tokens that the conversation can reach with the answer asked for last."""
        room = self.limits.context_tokens
        longest = self.answer_start + (self._settings.max_tokens or room)
        return min(room, max(longest, len(self.tokens)))

    # ------------------------------------------------------------ what the client says

    def on_open(self, tokens: Sequence[int], *, asks: bool = False) -> int:
        """The conversation so far; returns how many of its tokens are cached and need not be read again.

        `asks`: an Ask comes with it, which may continue the answer under way: what the target chose of it beyond the
        client's tokens is kept. ContextLengthError, TokenRangeError: tokens that cannot be held.
        """
        self.check_open(tokens)
        running = self.phase is SessionPhase.ANSWERING or self._finish in ENDED_BY_RULE
        continues = self._replace(0, tokens)
        self._resumable = asks and running and continues
        if not self._resumable:
            self._crop(len(tokens))
        self.version += 1  # a forward under way answers to the stream that broke
        self.phase = SessionPhase.IDLE
        self.pending = PendingDraft()  # a new stream counts its epochs from the start
        self.acknowledged = len(tokens)
        return min(self.cached, len(tokens))

    def check_open(self, tokens: Sequence[int], ask: Ask | None = None) -> None:
        """Checks that `on_open` would accept these tokens, and `on_ask` this question after them.

        ProtocolError: the question does not continue the conversation. ContextLengthError, TokenRangeError: tokens that
        cannot be held.
        """
        self._check_new(tokens, held=0, spare=0)
        if ask is not None:
            self._check_ask(ask, PrefixHashes(tokens))

    def on_ask(self, ask: Ask, form: ConstrainedText | None = None, given: Sequence[int] = ()) -> Backlog:
        """Appends a turn and begins (or continues) an answer. An Ask repeated in one stream changes nothing.

        Returns the part of this answer already chosen beyond the client's tokens, to be sent at once; without tokens,
        but with a finish, if the answer ends with what the client holds. Errors are those of `check_open`.

        `form`: where the settings have a constraint, the answer under it, before its first token. `given`: the answer,
        of which nothing is chosen; none: the target chooses it.
        """
        self._check_ask(ask, self.hashes)
        self._check_new(given, held=ask.end, spare=0)
        end, start = ask.end, ask.start
        same = (
            start == self.answer_start
            and ask.settings == self._settings
            and self.tokens[ask.base : end] == list(ask.tokens)
        )
        if same and self.phase is SessionPhase.ANSWERING and ask.id == self.ask_id:
            return Backlog(end, repeats=True)
        self.ask_id = ask.id
        self._form, self._given = form, given
        if same and self._resumable:
            return self._resume(end)
        self._replace(ask.base, ask.tokens)
        self._crop(end)
        self.cached = self.states.cut(min(self.cached, end - 1))
        self.answer_start = start
        self.states.want_before(start - 1)  # as chat templates may leave out what the answer thinks first
        self.states.want_before(end - 1)
        self._settings = ask.settings
        self._chances.clear()
        self._rule = self._new_rule(ask.settings, start)
        self._finish = self._rule.finish_of(self.tokens[start:])
        self._resumable = False
        if self._finish is Finish.UNFINISHED:
            self._begin(end)
        else:
            self._end(self._finish)
        return Backlog(end, (), self._finish)

    def _check_ask(self, ask: Ask, hashes: PrefixHashes) -> None:
        """Checks that a question continues the conversation that has these hashes."""
        base = ask.base
        if not 0 <= base <= len(hashes):
            raise ProtocolError(f"an Ask with base 0 to {len(hashes)}", f"base {base}")
        if hashes.at(base) != ask.prefix_hash:
            raise ProtocolError(
                f"an Ask that continues this conversation ({base} tokens hash to {hashes.at(base):016x})",
                f"{ask.prefix_hash:016x}",
                hint="The client must open a new stream with all its tokens.",
            )
        if ask.end == 0:
            raise ProtocolError("an Ask with at least one token", "an empty conversation")
        if not 1 <= ask.start <= ask.end:
            raise ProtocolError(f"an Ask with answer_start 1 to {ask.end}", f"{ask.start}")
        spare = 1 if ask.start == ask.end else 0  # a full context ends an answer that has begun
        self._check_new(ask.tokens, held=base, spare=spare)

    def _resume(self, end: int) -> Backlog:
        missed = tuple(self.tokens[end:])
        chances = tuple(self._chances[-len(missed) :]) if missed else ()
        if len(chances) < len(missed):  # the client had said that it holds some of these
            chances = ()
        backlog = Backlog(end, missed, self._finish, chances=chances)
        self._resumable = False
        if self._finish is Finish.UNFINISHED:
            self._begin(end)
            self._first_step = not backlog.tokens
        return backlog

    def _begin(self, end: int) -> None:
        self.pending.clear()
        self.acknowledged = end
        self.phase = SessionPhase.ANSWERING
        self._first_step = True

    def _replace(self, base: int, tokens: Sequence[int]) -> bool:
        """Puts `tokens` at position `base`; what they repeat stays. False if what came after them had to go."""
        common = _common_length(self.tokens[base : base + len(tokens)], tokens)
        if common < len(tokens):
            self._crop(base + common)
            self._append(tokens[common:])
        return common == len(tokens)

    def on_draft(self, draft: Draft) -> None:
        """Adds draft nodes; those that came too late are counted and dropped.

        TreeError, TokenRangeError: nodes that are no tree of this target's tokens. ProtocolError: parents that are
        neither absent nor one for each token.
        """
        check_tokens(draft.tokens, self.limits.vocab_size)
        if self.phase is not SessionPhase.ANSWERING:
            self.pending.stale_nodes += len(draft.tokens)
            return
        self.pending.add_frame(self.tokens, self.hashes, draft)
        self.acknowledged = max(self.acknowledged, min(draft.base, len(self.tokens)))

    def on_ack(self, committed: int) -> None:
        """The client holds `committed` tokens. ProtocolError: more than were ever committed."""
        if committed > len(self.tokens):
            raise ProtocolError(f"an Ack of at most {len(self.tokens)} tokens", f"{committed}")
        self.acknowledged = max(self.acknowledged, committed)
        unknown = len(self.tokens) - self.acknowledged
        del self._chances[: max(0, len(self._chances) - unknown)]

    def on_stop(self) -> bool:
        """Ends the answer where it is; False if none was running."""
        if self.phase is not SessionPhase.ANSWERING:
            return False
        self._end(Finish.CANCELLED)
        return True

    def forget_cache(self, length: int) -> None:
        """Forgets what the cache holds from position `length` on, which must be read again."""
        self.cache_version += 1
        if length < self.cached:
            self.cached = self.states.cut(length)
            self.version += 1
        self._keep_states(length)

    def _keep_states(self, length: int) -> None:
        """States are kept of what comes at position `length` and after, as they are before it."""
        if self.stateless_from is not None and length <= self.stateless_from:
            self.stateless_from = None

    def on_adopted(self, length: int, text: list[int], cache_version: int) -> bool:
        """The cache was given the rows of `length` tokens that another session has read; False if they are void.

        `text`, `cache_version`: `tokens` and `cache_version` when the rows were asked for.
        """
        if length >= len(self.tokens) or not self._still_begins(text, length) or cache_version != self.cache_version:
            return False
        self.cached, self.stateless_from = length, None
        self.states.on_adopted(length)
        return True

    # ------------------------------------------------------------ what the target does

    def plan_step(self, most_read: int | None = None) -> StepPlan | None:
        """The next forward for this session, if its turn came now, with all nodes that have arrived.

        `most_read`: tokens of a prompt that it may feed; None: a chunk.
        """
        if self.phase is not SessionPhase.ANSWERING:
            return None
        chunk = self.limits.prefill_chunk if most_read is None else min(most_read, self.limits.prefill_chunk)
        feed = self.tokens[self.cached : self.states.chunk_end(self.cached, min(self.cached + chunk, len(self.tokens)))]
        if self.unread > len(feed):
            return self._plan(feed, NO_DRAFT, chooses=False)
        if self._given:
            return self._plan_given(feed, chunk)
        tree = self.arrived_draft()
        ahead = len(self.tokens) - self.acknowledged
        steps_alone = self._first_step or (
            ahead < self.limits.run_ahead_tokens if self.run_ahead else self.pending.covers(self.tokens)
        )
        if tree or steps_alone:
            return self._plan(feed, tree, chooses=True, needs_draft=not steps_alone)
        return None

    def _plan_given(self, feed: Sequence[int], most_read: int) -> StepPlan | None:
        """The next tokens of a given answer, verified like a draft that is right; None: the client has enough to read.

        Their rows are at most those of a draft, so that logits of a long text are never there at once.
        """
        if len(self.tokens) - self.acknowledged >= self.limits.run_ahead_tokens:
            return None
        rows = max(1, min(most_read - len(feed) + 1, self.limits.draft_nodes + 1))
        given = tuple(self._given[len(self.tokens) - self.answer_start :][:rows])
        return self._plan(feed, DraftTree.chain(given[:-1]), chooses=True, given=given)

    def arrived_draft(self) -> DraftTree:
        """The nodes that have arrived below the newest committed token, as many as one verification may take."""
        return self.pending.usable(self.tokens, self.most_nodes)

    @property
    def cached_with_states(self) -> int:
        """How many of the first tokens the cache holds, and states are kept of."""
        return self.cached if self.stateless_from is None else min(self.cached, self.stateless_from)

    @property
    def most_nodes(self) -> int:
        """The most nodes that the next verification may take."""
        return max(0, min(self.limits.draft_nodes, self.limits.context_tokens - len(self.tokens)))

    def on_prefilled(self, plan: StepPlan) -> bool:
        """A chunk of the prompt is in the cache; False if the session has moved on and the work is void."""
        if plan.version != self.version:
            self._salvage(plan)
            return False
        self.cached = plan.fed
        self.states.on_forward(plan)
        return True

    def on_verified(self, plan: StepPlan, verification: Verification) -> bool:
        """A forward has chosen tokens: commits them; False if the session has moved on and the work is void."""
        if plan.version != self.version:
            self._salvage(plan)
            return False
        self._append(verification.taken)
        self._chances += verification.chances
        self.cached = plan.fed + len(verification.kept)
        self.states.on_forward(plan)
        self._first_step = False
        self.pending.on_committed(self.tokens)
        if verification.finish is not Finish.UNFINISHED:
            self._end(verification.finish)
        return True

    def verdict(
        self,
        plan: StepPlan,
        verification: Verification,
        stale: int,
        step_ms: float,
        least_chance: float = 0.0,
        *,
        shared: bool = False,
    ) -> Verdict:
        """What a client learns of a verification that was committed.

        `stale`: nodes that came too late since the last verdict. `step_ms`: how long the forward took; `shared`: with
        other answers. `least_chance`: that a node must have to be worth verifying now.
        """
        return Verdict(
            ask=self.ask_id,
            base=plan.fed,
            prefix_hash=self.hashes.short_at(plan.fed),
            tokens=verification.taken,
            finish=verification.finish,
            accepted=verification.accepted,
            drafted=len(plan.tree),
            stale=stale,
            step_ms=step_ms,
            server_drafted=plan.own_nodes,
            server_accepted=verification.own_accepted,
            least_chance=least_chance,
            chances=verification.chances,
            shared=shared,
        )

    def _salvage(self, plan: StepPlan) -> None:
        """Keeps what a void forward has read, if the text up to there is still the same.

        Otherwise a client that asks again before its prompt is read would have it read for ever.
        """
        if self._still_begins(plan.text, plan.fed) and plan.cache_version == self.cache_version:
            self.cached = max(self.cached, min(plan.fed, len(self.tokens) - 1))
        self.states.on_forward(plan)
        self.cached = self.states.cut(self.cached)

    def _still_begins(self, text: list[int], length: int) -> bool:
        """Whether the text begins as `text`, an earlier `tokens`, did; compared by tokens, as a hash can be forged."""
        if length > len(self.tokens):
            return False
        return text is self.tokens or text[:length] == self.tokens[:length]

    def _plan(
        self,
        feed: Sequence[int],
        tree: DraftTree,
        *,
        chooses: bool,
        needs_draft: bool = False,
        given: tuple[int, ...] = (),
    ) -> StepPlan:
        start = max(self.answer_start, len(self.tokens) - self._settings.decisive_tokens)
        return StepPlan(
            version=self.version,
            cached=self.cached,
            feed=tuple(feed),
            tree=tree,
            chooses=chooses,
            rule=self._rule,
            answer=tuple(self.tokens[start:]),
            before=start - self.answer_start,
            cache_version=self.cache_version,
            text=self.tokens,
            needs_draft=needs_draft,
            form=self._form,
            given=given,
            leaves_checkpoint=not chooses and self.states.wants_at(self.cached + len(feed)),
        )

    def _new_rule(self, settings: AnswerSettings, answer_start: int) -> FinishRule:
        settings = replace(settings, sampling=settings.sampling.within(answer_start))
        return FinishRule(settings, answer_start, self.limits.context_tokens, self._end_of_text, self._decode)

    def _end(self, finish: Finish) -> None:
        self.phase = SessionPhase.IDLE
        self._finish = finish
        self.version += 1
        self.pending.clear()

    def _append(self, tokens: Sequence[int]) -> None:
        self.tokens.extend(tokens)
        self.hashes.extend(tokens)

    def _crop(self, length: int) -> None:
        if length < len(self.tokens):
            self.tokens = self.tokens[:length]  # a forward under way holds the old list, which only ever grew
            self.states.want_before(length)  # where later texts may depart from this one too
        self.hashes.crop(length)
        self._keep_states(length)
        self.cached = self.states.cut(min(self.cached, length))
        self.version += 1

    def _check_new(self, tokens: Sequence[int], held: int, spare: int) -> None:
        check_tokens(tokens, self.limits.vocab_size)
        if held + len(tokens) + spare > self.limits.context_tokens:
            raise ContextLengthError(
                f"The conversation has {held + len(tokens)} tokens, "
                f"the context holds {self.limits.context_tokens} with at least one for the answer."
            )


def _common_length(mine: list[int], theirs: Sequence[int]) -> int:
    """The number of tokens that two texts share at their start."""
    shared = min(len(mine), len(theirs))
    differ = np.flatnonzero(np.asarray(mine[:shared]) != np.asarray(theirs)[:shared])
    return int(differ[0]) if len(differ) else shared
