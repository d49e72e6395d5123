"""How an answer to a long prompt begins: the first token against plain streaming, and when drafting is under way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.split_client import SplitClient
from moa_bench.network.emulated import Link, linked
from moa_bench.report.answers import PlainClient
from moa_bench.report.spread import Spread, paired_ratio

TOKENS = 16  # of each answer: enough for a draft to be sent
WARM_UP = 1  # answers not counted: they open connections


@dataclass(frozen=True, slots=True)
class Start:
    """How answers begin over one link.

    Args:
        plain_ms, split_ms: from the question to the first token.
        ratio: of the two, pair by pair.
        draft_after_ms: from the first token to the first Draft frame; None: no draft was sent.
        rtt_ms: mean of the link.
    """

    link: str
    prompt_tokens: int
    plain_ms: Spread
    split_ms: Spread
    ratio: Spread
    draft_after_ms: Spread | None
    rtt_ms: float


def measure_start(
    link: Link,
    server: str,
    connect: Callable[[str], SplitClient],
    prompt: Sequence[int],
    answers: int,
    *,
    cores: set[int] | None,
) -> Start:
    """So many answers by plain streaming and by a split client in turn, on connections that are open already.

    Args:
        connect: makes the split client for an address.
    """
    settings = AnswerSettings(max_tokens=TOKENS, ignore_end_of_text=True)
    plain_ms: list[float] = []
    split_ms: list[float] = []
    drafts_ms: list[float] = []
    with linked(link, server, cores=cores) as running:
        plain, split = PlainClient(running.address), connect(running.address)
        try:
            for number in range(-WARM_UP, answers):
                one = plain.ask(prompt, settings).first_ms
                split.notes.clear()
                other = split.ask(prompt, settings).first_ms
                if number < 0:
                    continue
                plain_ms.append(one)
                split_ms.append(other)
                first = next(note.at_s for note in split.notes if note.kind == "verdict")
                drafts_ms += [1e3 * (note.at_s - first) for note in split.notes if note.kind == "draft"][:1]
        finally:
            plain.close()
            split.close()
    return Start(
        link.name,
        len(prompt),
        Spread.of(plain_ms),
        Spread.of(split_ms),
        paired_ratio(split_ms, plain_ms),
        Spread.of(drafts_ms) if drafts_ms else None,
        round(link.rtt_ms, 1),
    )
