"""What one forward is fed of a text: a chain, or a tree in which wrong branches hang between its tokens. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from moa_shared.tree.arithmetic import below_chain

LARGEST_TREE = 62  # the paper's (arXiv 2410.03804, section 5)
SMALLEST_TREE = 8
LARGEST_CHUNK = 400  # above the server's own chunks of a prompt


@dataclass(frozen=True, slots=True)
class Feed:
    """Rows of one forward."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...] | None  # of each token, -1 for the last token of the cache; None: a chain
    path: tuple[int, ...]  # the rows that hold the text's next tokens, in order


def chain_feed(text: Sequence[int], start: int, count: int) -> Feed:
    """The text's next tokens, as many as there are."""
    tokens = tuple(text[start : start + count])
    return Feed(tokens, None, tuple(range(len(tokens))))


def tree_feed(text: Sequence[int], start: int, nodes: int, vocab_size: int, random: Random) -> Feed:
    """A random tree of so many nodes: the text's next tokens are a path in it, all others are random tokens.

    Any node may be anywhere below an earlier one, and there may be several roots. At least one token is the text's.
    """
    share = random.uniform(0.15, 0.9)  # of the nodes that hold the text
    text_node_at_least = random.randrange(nodes)
    tokens: list[int] = []
    parents: list[int] = []
    path: list[int] = []
    for node in range(nodes):
        place = start + len(path)
        if place < len(text) and (random.random() < share or (not path and node == text_node_at_least)):
            tokens.append(text[place])
            parents.append(path[-1] if path else -1)
            path.append(node)
        else:
            tokens.append(random.randrange(vocab_size))
            parents.append(random.randrange(-1, node))
    return Feed(tuple(tokens), tuple(parents), tuple(path))


def any_feed(text: Sequence[int], start: int, vocab_size: int, random: Random) -> Feed:
    """A chain of 1 to 62 tokens or a tree of 8 to 62 nodes."""
    if random.random() < 0.5:
        return chain_feed(text, start, random.randint(1, LARGEST_TREE))
    return tree_feed(text, start, random.randint(SMALLEST_TREE, LARGEST_TREE), vocab_size, random)


def wrong_tree(nodes: int, vocab_size: int, random: Random) -> Feed:
    """A tree of random tokens, none of which is kept."""
    parents = tuple(random.randrange(-1, node) for node in range(nodes))
    return Feed(tuple(random.randrange(vocab_size) for _ in range(nodes)), parents, ())


def with_draft(fed: Sequence[int], draft: Feed) -> Feed:
    """Tokens that are fed, and a draft below the last of them, as a server verifies it."""
    count = len(fed)
    path = (*range(count), *(count + node for node in draft.path))
    return Feed((*fed, *draft.tokens), tuple(below_chain(count, draft.parents or ())), path)
