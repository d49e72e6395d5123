"""How much `moa-bench split` measures."""

from __future__ import annotations

from dataclasses import dataclass

from moa_bench.harness.links import Link


@dataclass(frozen=True, slots=True)
class SplitEffort:
    """How much to measure.

    Args:
        questions: asked over each link, of all methods.
        answer_tokens: of an answer, whatever the target chooses.
        longest_prompt: questions with more tokens are not asked.
        chain: nodes of a chain that is sent whole.
        links: their names.
    """

    questions: int = 2
    answer_tokens: int = 64
    longest_prompt: int = 600
    chain: int = 5
    links: tuple[str, ...] = ("RTT 0", "wired", "5G", "4G", "RTT 100 ms", "RTT 300 ms")


QUICK = SplitEffort(1, 12, chain=3, links=("RTT 0", "4G"))

# Delays are of each direction, the harder reading of the paper's figures; 5G and 4G are those of `moa-bench network`.
LINKS = {
    link.name: link
    for link in (
        Link("RTT 0"),
        Link("wired", 9.0, 0.0, 50.0),
        Link("5G", 10.0, 10.0),
        Link("4G", 21.0, 19.0, 20.0),
        Link("RTT 50 ms", 25.0),
        Link("RTT 100 ms", 50.0),
        Link("RTT 150 ms", 75.0),
        Link("RTT 300 ms", 150.0),
    )
}
