"""One question over one link, asked in turn of all methods; plain streaming answers it first and last.

A round is JSON from here on.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from typing import Any

from moa_shared.errors import MoaError
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.answers import PlainClient, TimedAnswer, common_tokens
from moa_bench.harness.split_client import SplitClient
from moa_bench.report.energy import METER
from moa_bench.report.interleave import rotated
from moa_bench.suites.split.figures import PLAIN

Connect = Callable[[], AbstractContextManager[SplitClient | PlainClient]]


def ask_round(
    connect: Mapping[str, Connect],
    prompt: Sequence[int],
    settings: AnswerSettings,
    server_cpu_s: Callable[[str], float],
    turn: int = 0,
) -> dict[str, Any]:
    """The answers of all methods to one question.

    Args:
        connect: new clients by method, PLAIN's among them.
        settings: of each answer.
        server_cpu_s: processor time that a method's server has used so far.
        turn: which of the methods begins after plain streaming.

    Returns:
        {"prompt_tokens", "answers": {method: [what each answer took]}}.
    """

    def ask(name: str, reference: Sequence[int] = ()) -> tuple[dict[str, Any], tuple[int, ...]]:
        return _ask(connect[name], prompt, settings, partial(server_cpu_s, name), reference)

    plain, first = ask(PLAIN)
    taken = {PLAIN: [plain]}
    for name in rotated([name for name in connect if name != PLAIN], turn):
        try:
            taken[name] = [ask(name, first)[0]]
        except MoaError as error:
            taken[name] = [{"failure": str(error)}]
    taken[PLAIN].append(ask(PLAIN, first)[0])
    return {"prompt_tokens": len(prompt), "answers": taken}


def _ask(
    connect: Connect,
    prompt: Sequence[int],
    settings: AnswerSettings,
    server_cpu_s: Callable[[], float],
    reference: Sequence[int],
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """One answer over a connection that is open already: what it took, and its tokens."""
    with connect() as client:
        client.ask(prompt[:1], AnswerSettings(max_tokens=1))  # opens what opens at the first call
        server_s, own_s, energy = server_cpu_s(), time.process_time(), METER.read()
        answer = client.ask(prompt, settings)
        joules = METER.joules_since(energy)
        own_s, server_s = time.process_time() - own_s, server_cpu_s() - server_s
    figures = client.figures if isinstance(client, SplitClient) else None
    counted = client.figures if isinstance(client, SplitClient) else client
    took = {
        "tokens": len(answer.tokens),
        "first_ms": round(answer.first_ms, 3),
        "seconds": round(answer.arrivals_s[-1], 5),
        "gaps_ms": gaps_ms(answer),
        "forwards": len(answer.tokens) if figures is None else figures.verdicts,
        "up": counted.up_bytes,
        "down": counted.down_bytes,
        "joules": joules,
        "server_cpu_s": round(server_s, 4),
        "own_cpu_s": round(own_s, 4),
        "common": common_tokens(answer.tokens, reference),
        "same": not reference or tuple(reference) == answer.tokens,
    }
    return took, answer.tokens


def gaps_ms(answer: TimedAnswer) -> list[float]:
    """Times between arrivals of text; tokens of one verdict arrive together."""
    return [round(1e3 * (after - before), 2) for before, after in pairwise(dict.fromkeys(answer.arrivals_s))]
