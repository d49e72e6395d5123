"""Routing by prefixes, simulated: three servers' own indices, and clients' own choice among them.

Each server answers its sessions together: a step takes STEP_MS and ROW_MS for each answer more; prompts are read in
turns, and while one is, steps take twice as long.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from moa_client.link.server import ServerRank
from moa_server.engine.shared_pages import PrefixIndex
from moa_shared.protocol.prefix_hash import NAMED_TOKENS, PrefixHashes

STEP_MS, ROW_MS, READ_MS, RTT_MS = 13.0, 0.6, 0.6, 20.0  # the default model on one core
SYSTEM_TOKENS, TURN_TOKENS, ANSWER_TOKENS, TURNS = 1000, 60, 60, 4
THINK_MS = 20_000.0
TICK_MS = 20.0


@dataclass
class Work:
    """A turn at a server: tokens to read, then tokens to write."""

    unread: float
    unwritten: float
    conversation: Conversation


@dataclass
class Replica:
    index: PrefixIndex[int] = field(default_factory=lambda: PrefixIndex(NAMED_TOKENS, lambda _: None))
    running: list[Work] = field(default_factory=list)
    begun: int = 0  # conversations
    turns: int = 0

    @property
    def load(self) -> float:
        """As Host.load."""
        others_ms = len(self.running) * ROW_MS
        readers = sum(work.unread > 0 for work in self.running)
        return max(others_ms / (STEP_MS + others_ms), readers / (readers + 1))

    def cached(self, text: PrefixHashes) -> int:
        return NAMED_TOKENS * self.index.count_named("key", text.named())

    def standing(self, text: PrefixHashes) -> ServerRank:
        return ServerRank(
            RTT_MS, STEP_MS, self.load, has_model=True, unread_tokens=len(text) - self.cached(text), read_ms=READ_MS
        )

    def run(self, ms: float) -> list[Work]:
        """Works for so long; returns what has ended."""
        readers = [work for work in self.running if work.unread > 0]
        writers = [work for work in self.running if work.unread <= 0]
        for work in readers:
            work.unread -= (ms / 2 if writers else ms) / READ_MS / len(readers)
        for work in writers:
            step_ms = STEP_MS + (len(writers) - 1) * ROW_MS
            work.unwritten -= ms / (2 * step_ms if readers else step_ms)
        ended = [work for work in self.running if work.unwritten <= 0]
        self.running = [work for work in self.running if work.unwritten > 0]
        return ended


@dataclass(eq=False)
class Conversation:
    """One that asks again a while after each answer, from a client that remembers no server."""

    number: int
    next_ms: float
    tokens: list[int]
    turns: int = 0
    hits: list[float] = field(default_factory=list)  # share of the text before the turn that was not read again


def simulate(
    arrivals_a_second: float, conversations: int, servers: int = 3, seed: int = 1, *, knows_prefixes: bool = True
) -> tuple[list[Replica], list[Conversation]]:
    rng = random.Random(seed)
    system = [rng.randrange(49_152) for _ in range(SYSTEM_TOKENS)]
    replicas = [Replica() for _ in range(servers)]
    made: list[Conversation] = []
    now = 0.0
    for number in range(conversations):
        now += rng.expovariate(arrivals_a_second / 1e3)
        made.append(Conversation(number, now, list(system)))
    waiting, now = set(made), 0.0
    while waiting or any(replica.running for replica in replicas):
        for each in sorted((each for each in waiting if each.next_ms <= now), key=lambda each: each.next_ms):
            waiting.remove(each)
            ask(each, replicas, rng, knows_prefixes=knows_prefixes)
        for replica in replicas:
            for work in replica.run(TICK_MS):
                each = work.conversation
                each.tokens += [rng.randrange(49_152) for _ in range(ANSWER_TOKENS)]
                replica.index.extend(each.number, "key", each.tokens, 1)
                replica.index.let_go(each.number)
                if each.turns < TURNS:
                    each.next_ms = now + rng.expovariate(1 / THINK_MS)
                    waiting.add(each)
        now += TICK_MS
    return replicas, made


def ask(each: Conversation, replicas: list[Replica], rng: random.Random, *, knows_prefixes: bool) -> None:
    before = len(each.tokens)
    each.tokens += [rng.randrange(49_152) for _ in range(TURN_TOKENS)]
    text = PrefixHashes(each.tokens)
    standings = [replica.standing(text) for replica in replicas]
    if not knows_prefixes:
        standings = [replace(standing, unread_tokens=0) for standing in standings]
    place = min(range(len(standings)), key=lambda index: standings[index].place(0.0))
    replica = replicas[place]
    cached = replica.cached(text)
    each.hits.append(cached / (before // NAMED_TOKENS * NAMED_TOKENS))
    each.turns += 1
    replica.begun += each.turns == 1
    replica.turns += 1
    replica.running.append(Work(len(text) - cached, ANSWER_TOKENS, each))


def later_hits(made: list[Conversation]) -> float:
    """The mean share of their text that turns after the first did not have read again."""
    hits = [hit for each in made for hit in each.hits[1:]]
    return sum(hits) / len(hits)


def largest_share(counts: list[int]) -> float:
    """Of all, times what each would have in an even division."""
    return max(counts) * len(counts) / sum(counts)


@pytest.mark.parametrize("arrivals_a_second", [1.0, 2.0, 4.0])  # at half of it, two servers are enough
@pytest.mark.parametrize("seed", [1, 2])
def test_later_turns_find_their_text_and_no_server_gets_more_than_its_share(
    arrivals_a_second: float, seed: int
) -> None:
    replicas, made = simulate(arrivals_a_second, 120, seed=seed)
    assert later_hits(made) > 0.98
    assert largest_share([replica.turns for replica in replicas]) < 1.6
    assert largest_share([replica.begun for replica in replicas]) < 1.6


def test_conversations_that_come_at_once_are_spread() -> None:
    """Nobody holds the system prompt: each server reads it, and none reads it for all."""
    replicas, made = simulate(1000.0, 16)
    assert largest_share([replica.begun for replica in replicas]) < 1.2
    assert later_hits(made) > 0.98


def test_the_shared_beginning_is_read_once_at_each_server() -> None:
    replicas, made = simulate(0.5, 120)
    assert all(replica.begun for replica in replicas)
    assert sum(each.hits[0] < 0.9 for each in made) == len(replicas)


def test_without_prefixes_turns_would_be_read_again() -> None:
    """What the choice by load and round trip alone does, so that the tests above can fail."""
    _, made = simulate(2.0, 120, knows_prefixes=False)
    assert later_hits(made) < 0.95
