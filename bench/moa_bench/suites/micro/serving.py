"""What a user of a real server meets: time to the first token, and bytes at the socket for each token."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.answers import AnswerClient
from moa_bench.harness.byte_counter import ByteCounter, SocketBytes
from moa_bench.report.spread import Spread, paired_ratio

STEADY_AFTER_TOKENS = 16  # the prompt's memory rows have been sent by then


@dataclass(frozen=True, slots=True)
class FirstToken:
    """Time from the question to the first token, over loopback."""

    way: str
    prompt_tokens: int
    ms: Spread
    ratio: Spread  # to the first way, pair by pair


@dataclass(frozen=True, slots=True)
class SocketTraffic:
    """Bytes of TCP payload that an answer moved."""

    way: str
    prompt_tokens: int
    answer_tokens: int
    whole: SocketBytes  # of the answer, connection and prompt included
    up_a_token: float  # after the first tokens
    down_a_token: float
    tokens_a_verdict: float  # each verdict costs its own framing


def measure_first_tokens(
    clients: Mapping[str, AnswerClient], prompts: Sequence[Sequence[int]], answers: int
) -> list[FirstToken]:
    """Each prompt asked by each client in turn; one round more than counted, so that connections are open."""
    settings = AnswerSettings(max_tokens=2, ignore_end_of_text=True)
    found = []
    for prompt in prompts:
        first_ms: dict[str, list[float]] = {way: [] for way in clients}
        for turn in range(-1, answers):
            for way, client in clients.items():
                answer = client.ask(prompt, settings)
                if turn >= 0:
                    first_ms[way].append(answer.first_ms)
        base = next(iter(first_ms.values()))
        found += [FirstToken(way, len(prompt), Spread.of(ms), paired_ratio(ms, base)) for way, ms in first_ms.items()]
    return found


def measure_traffic(
    way: str, client: AnswerClient, counter: ByteCounter, prompt: Sequence[int], answer_tokens: int
) -> SocketTraffic:
    """One answer of a client that is connected through `counter`."""
    settings = AnswerSettings(max_tokens=answer_tokens, ignore_end_of_text=True)
    steady_after = min(STEADY_AFTER_TOKENS, answer_tokens // 2)
    steady: list[tuple[int, SocketBytes]] = []

    def watch(count: int) -> None:
        if count >= steady_after:
            steady.append((count, counter.read()))

    before = counter.read()
    answer = client.ask(prompt, settings, watch)
    (first, from_bytes), (last, to_bytes) = steady[0], steady[-1]
    during, span = to_bytes - from_bytes, max(1, last - first)
    return SocketTraffic(
        way,
        len(prompt),
        answer_tokens,
        counter.read() - before,
        round(during.up / span, 1),
        round(during.down / span, 1),
        round(len(answer.tokens) / len(set(answer.arrivals_s)), 2),
    )
