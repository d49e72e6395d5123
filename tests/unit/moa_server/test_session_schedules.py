"""The session alone against a sender that repeats, delays, re-orders and invents frames, over cuts and lost servers."""

import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from moa_server.session.session import Session, SessionLimits
from moa_server.session.verification import StepPlan, Verification
from moa_shared.errors import ProtocolError
from moa_shared.protocol.messages import AnswerSettings, Ask, Draft, Finish, FinishRule
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.tree import DraftTree
from moa_testing.models import SimulatedCache

from tests.support.skipping import examples

VOCAB = 4
LENGTH = 24  # of the answer
LIMITS = SessionLimits(100, VOCAB, draft_nodes=5, prefill_chunk=6, run_ahead_tokens=6)
END_OF_TEXT = frozenset({VOCAB - 1})
HOWS = (
    AnswerSettings(max_tokens=LENGTH, ignore_end_of_text=True),
    AnswerSettings(max_tokens=LENGTH),
    AnswerSettings(max_tokens=LENGTH, ignore_end_of_text=True, stop=("abc", "dd")),
)


def decode(tokens: Sequence[int]) -> str:
    return "".join("abcd"[token] for token in tokens)


def choose(tokens: Sequence[int]) -> int:
    """The toy target."""
    return hash(tuple(tokens)) // 7 % VOCAB


@dataclass
class Device:
    """A client without a state machine: it takes committed tokens as they come, and sends whatever it likes.

    `sent`: frames of this stream, any of which may arrive again at any time. `delivered`: tokens that verdicts have
    brought.
    """

    prompt: list[int]
    how: AnswerSettings
    tokens: list[int]
    delivered: list[tuple[int, tuple[int, ...], Finish]] = field(default_factory=list)
    sent: list[Draft] = field(default_factory=list)
    epoch: int = 0
    finish: Finish = Finish.UNFINISHED

    def draft(self, rng: random.Random, text: Sequence[int]) -> Draft:
        """A frame: of the newest state or of an old one, right or wrong, with gaps, other hashes and epochs."""
        self.epoch += rng.random() < 0.3
        base = len(self.tokens) if rng.random() < 0.6 else rng.randrange(1, len(self.tokens) + 1)
        tokens = [
            text[at] if at < len(text) and rng.random() < 0.8 else rng.randrange(VOCAB)
            for at in range(base, base + rng.randrange(8))
        ]
        first = 0 if rng.random() < 0.7 else rng.randrange(6)
        parents = [rng.randrange(-1, first + index) for index in range(len(tokens))] if rng.random() < 0.3 else []
        right = PrefixHashes(self.tokens[:base]).short_at(base)
        return Draft(
            epoch=max(0, self.epoch - (rng.random() < 0.1)),
            base=base,
            prefix_hash=rng.choice([right, right, right, 0, 12345]),
            first_node=first,
            tokens=tokens,
            parents=parents,
        )

    def take(self, rng: random.Random) -> None:
        """A verdict arrives, now and then an old one again."""
        if not self.delivered:
            return
        base, tokens, finish = self.delivered[0] if rng.random() < 0.2 else self.delivered.pop(0)
        assert base <= len(self.tokens)
        known = len(self.tokens) - base
        assert self.tokens[base:] == list(tokens[:known])  # nothing that was committed is ever taken back
        self.tokens += tokens[known:]
        self.finish = finish


class Server:
    """A session and its cache, with one forward under way at most."""

    def __init__(self, *, run_ahead: bool, page: int = 0) -> None:
        self.cache = SimulatedCache(has_states=page > 0)
        limits = replace(LIMITS, checkpoint_tokens=page)
        self.session = Session(limits, end_of_text=END_OF_TEXT, decode=decode, run_ahead=run_ahead)
        self.flying: tuple[StepPlan, Verification | None] | None = None

    def begin(self, rng: random.Random) -> None:
        """A forward that verifies all that has arrived, or some of it."""
        most = rng.randrange(6)
        plan = self.session.plan_step()
        if plan is not None and rng.random() < 0.5:
            plan = plan.pick(plan.tree.pick(range(min(most, len(plan.tree)))))
        if plan is None:
            return
        assert self.cache.crop(plan.cached) == plan.cached
        self.cache += plan.feed
        self.cache.take_in(plan)
        verification = plan.verify(_chosen(self.cache, plan.tree)) if plan.chooses else None
        self.cache += [plan.tree.tokens[node] for node in verification.kept] if verification is not None else []
        self.flying = plan, verification

    def end(self, device: Device) -> None:
        """The forward's outcome, which is void if something overtook it."""
        if self.flying is None:
            return
        (plan, verification), self.flying = self.flying, None
        base = len(self.session.tokens)
        if verification is None:
            self.session.on_prefilled(plan)
        elif self.session.on_verified(plan, verification):
            device.delivered.append((base, verification.taken, verification.finish))

    def ask(self, device: Device) -> None:
        base = len(device.tokens)
        prefix_hash = PrefixHashes(device.tokens).at(base)
        backlog = self.session.on_ask(Ask(1, base, prefix_hash, (), device.how, len(device.prompt)))
        if backlog.is_news:
            device.delivered.append((backlog.base, backlog.tokens, backlog.finish))


def _chosen(held: Sequence[int], tree: DraftTree) -> list[int]:
    paths = [[tree.tokens[node] for node in tree.path_to(node)] for node in range(len(tree))]
    return [choose([*held, *path]) for path in [[], *paths]]


def plain_text(prompt: Sequence[int], how: AnswerSettings) -> list[int]:
    rule, text = FinishRule(how, len(prompt), LIMITS.context_tokens, END_OF_TEXT, decode), list(prompt)
    while True:
        taken, finish = rule.cut(text[len(prompt) :], [choose(text)])
        text += taken
        if finish is not Finish.UNFINISHED:
            return text


def run_schedule(rng: random.Random, how: AnswerSettings, page: int, *, run_ahead: bool) -> tuple[Device, list[int]]:
    prompt = [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 9))]
    text = plain_text(prompt, how)
    device = Device(prompt, how, list(prompt))
    server = Server(run_ahead=run_ahead, page=page)
    server.session.on_open(device.tokens)
    server.ask(device)
    for _ in range(20_000):
        event = rng.random()
        if device.finish is not Finish.UNFINISHED:
            return device, text
        if event < 0.3:
            device.sent.append(device.draft(rng, text))
            _deliver(server, device.sent[-1])
        elif event < 0.4 and device.sent:
            _deliver(server, rng.choice(device.sent))  # again, late, out of order
        elif event < 0.65:
            if server.flying is None:
                server.begin(rng)
            else:
                server.end(device)
        elif event < 0.95:
            device.take(rng)
            server.session.on_ack(len(device.tokens))
        else:  # the stream breaks: what was on its way is lost, and perhaps the server with it
            device.sent, device.delivered, device.epoch = [], [], 0
            if rng.random() < 0.3:
                server = Server(run_ahead=run_ahead, page=page)
            asks = rng.random() < 0.5
            server.session.on_open(device.tokens, asks=asks)
            server.ask(device)
        assert server.session.tokens == text[: len(server.session.tokens)]
        assert len(server.session.tokens) - server.session.acknowledged <= LIMITS.run_ahead_tokens + LIMITS.draft_nodes
    raise AssertionError("the answer did not end")


def _deliver(server: Server, frame: Draft) -> None:
    with suppress(ProtocolError):  # a frame that claims what is not committed here is refused, and nothing is changed
        server.session.on_draft(frame)


@given(
    seed=st.integers(0, 2**32),
    how=st.sampled_from(HOWS),
    page=st.sampled_from([0, 2, 5]),  # of a target with recurrent states; 0: it has none
    run_ahead=st.booleans(),
)
@settings(max_examples=examples(500))
def test_what_is_committed_is_the_target_s_text(seed: int, how: AnswerSettings, page: int, run_ahead: bool) -> None:
    device, text = run_schedule(random.Random(seed), how, page, run_ahead=run_ahead)
    assert device.tokens == text
