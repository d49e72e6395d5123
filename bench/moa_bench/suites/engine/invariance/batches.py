"""Forwards of 1 to 16 sessions as a server forms them: plain steps, verifications and chunks of prompts side by side.

Sessions are at different places of their texts: each begins when another has ended, and now and then one loses a part
of its cache. Rows are compared as far as the forward gives them: logits, the state of one layer, keys and values.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from moa_server.verifier import Target

from moa_bench.suites.engine.invariance.feeds import Feed, chain_feed, tree_feed, with_draft, wrong_tree
from moa_bench.suites.engine.invariance.readings import Rereading, Tally
from moa_bench.suites.engine.invariance.reference import Reference

MOST_SESSIONS = 16
MOST_READ = 256  # tokens of prompts in one forward, as the server's default
MOST_FED = 4  # tokens that an answer feeds besides its draft: more than one where it reads some again
MOST_NODES = 32
LOSSES = 1 / 64  # of the parts, before which a session loses a part of its cache
SIZES = ((1, "a forward of 1 session"), (4, "of 2 to 4"), (8, "of 5 to 8"), (MOST_SESSIONS, "of 9 to 16"))


@dataclass(frozen=True, slots=True)
class SessionPart:
    """One session's part of a forward."""

    feed: Feed
    wanted: range  # rows whose logits are wanted
    reads: bool = False  # a chunk of a prompt


def draw_part(text: Sequence[int], start: int, room: int, vocab_size: int, random: Random) -> SessionPart:
    """A plain step, a verification or a chunk of a prompt.

    Args:
        start: tokens of the text that were read.
        room: tokens of prompts that the forward may still read.
    """
    kind = random.random()
    if kind < 0.25 and room:
        feed = chain_feed(text, start, random.randint(1, room))
        return SessionPart(feed, range(len(feed.tokens) if random.random() < 0.5 else 0), reads=True)
    fed = chain_feed(text, start, random.randint(1, MOST_FED) if kind < 0.35 else 1)
    if kind < 0.6:
        return SessionPart(fed, range(len(fed.tokens)))
    nodes = random.randint(1, MOST_NODES)
    if random.random() < 0.25 or start + len(fed.tokens) == len(text):
        draft = wrong_tree(nodes, vocab_size, random)
    else:
        draft = tree_feed(text, start + len(fed.tokens), nodes, vocab_size, random)
    feed = with_draft(fed.tokens, draft)
    return SessionPart(feed, range(len(fed.tokens) - 1, len(feed.tokens)))


def read_batches(
    target: Target, references: Sequence[Reference], tallies: defaultdict[str, Tally], random: Random
) -> None:
    """Reads all texts, up to 16 at a time; each forward takes some part of a random number of them.

    Args:
        references: whose states are all of one layer: others could not share a forward.
        tallies: by the names of SIZES.
    """
    waiting = deque(random.sample(references, len(references)))
    by_size = [(most, tallies[name]) for most, name in SIZES]
    open_sessions: list[Rereading] = []
    while waiting or open_sessions:
        while waiting and len(open_sessions) < MOST_SESSIONS:
            open_sessions.append(Rereading(target, waiting.popleft(), wants_state=random.random() < 0.5))
        taken = random.sample(open_sessions, random.randint(1, len(open_sessions)))
        of_size = next(counts for most, counts in by_size if len(taken) <= most)
        parts = _draw_parts(taken, target.vocab_size, random)
        outputs = target.forward_all(
            [session.request(part.feed, part.wanted) for session, part in zip(taken, parts, strict=True)]
        )
        for session, part, output in zip(taken, parts, outputs, strict=True):
            session.compare(part.feed, output, of_size, part.wanted)
        open_sessions = [session for session in open_sessions if not session.is_done]


def _draw_parts(sessions: Sequence[Rereading], vocab_size: int, random: Random) -> list[SessionPart]:
    parts, room = [], MOST_READ
    for session in sessions:
        if random.random() < LOSSES:
            session.cache.crop(random.randint(0, session.cache.length))
        parts.append(draw_part(session.reference.tokens, session.at, room, vocab_size, random))
        room -= len(parts[-1].feed.tokens) if parts[-1].reads else 0
    return parts
