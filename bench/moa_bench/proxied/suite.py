"""`moa-bench envoy`: what Envoy in front of a server costs a token, next to clients that call the server directly.

One server, over TLS in all cases; each round holds one measurement of each way and number of clients, in turn. Calling
directly is measured twice a round: the difference between these two is what Envoy's must be compared with.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from moa_shared.programs.progress import make_progress
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.certificates import make_certificate
from moa_bench.harness.cores import on_cores
from moa_bench.harness.prompts import chat_tokens
from moa_bench.harness.servers import running_server
from moa_bench.micro.secure import QUESTION, thread_times_us
from moa_bench.proxied.envoy import running_envoy
from moa_bench.report.answers import PlainClient, TimedAnswer
from moa_bench.report.experiment import Experiment
from moa_bench.report.interleave import collect_interleaved
from moa_bench.report.report import ENVOY, facts_line, table
from moa_bench.report.spread import Spread, paired_ratio

DIRECT, AGAIN, PROXIED = "direct", "direct, again", "through Envoy"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure.

    Args:
        rounds: of all cases; `tokens`: of each answer.
        clients: how many ask at once, for each number of them.
    """

    rounds: int = 12
    tokens: int = 64
    clients: tuple[int, ...] = (1, 16)


QUICK = Effort(1, 8, (1, 2))


@dataclass(frozen=True, slots=True)
class Cost:
    """What answers took that were asked at once.

    Args:
        first_ms: until the first token; `token_ms`: between two tokens; both the median over the clients.
        proxy_us: CPU time of Envoy, a token.
    """

    first_ms: float
    token_ms: float
    proxy_us: float


def run_envoy(*, quick: bool, json_file: Path | None, model: str, level: str, pin: bool) -> None:
    """Measure and report.

    Raises:
        MoaError: Envoy is not installed, or a process fails.
    """
    from moa_shared.models import load_tokenizer, resolve

    effort = QUICK if quick else Effort()
    experiment = Experiment("envoy", quick=quick, json_file=json_file, pin=pin, effort=effort, target=model)
    prompt = chat_tokens(load_tokenizer(resolve(model, progress=make_progress())), QUESTION)
    with on_cores(experiment.own_cores), tempfile.TemporaryDirectory(prefix="moa-bench-") as name:
        folder = Path(name)
        certificate, key = make_certificate(folder)
        for made, wanted in ((certificate, "proxy.pem"), (key, "proxy.key"), (certificate, "servers-ca.pem")):
            shutil.copy(made, folder / wanted)
        flags = ("--tls-cert", str(certificate), "--tls-key", str(key))
        with (
            running_server(model, level=level, flags=flags, cores=experiment.server_cores) as server,
            running_envoy(server.address, folder) as proxy,
        ):
            credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
            ways = {DIRECT: server.address, AGAIN: server.address, PROXIED: proxy.address}
            experiment.result["costs"] = measure(ways, credentials, proxy.process.pid, prompt, effort)
    experiment.publish(render(experiment.result), page=ENVOY)


def measure(
    ways: Mapping[str, str], credentials: grpc.ChannelCredentials, proxy: int, prompt: Sequence[int], effort: Effort
) -> dict[str, dict[str, list[dict[str, float]]]]:
    """Costs by the number of clients and the way, one a round.

    Args:
        ways: the address of each; `proxy`: Envoy's process.
    """
    settings = AnswerSettings(max_tokens=effort.tokens, ignore_end_of_text=True)
    costs: dict[str, dict[str, list[dict[str, float]]]] = {
        str(clients): {way: [] for way in ways} for clients in effort.clients
    }

    def ask(clients: int, way: str) -> float:
        before = sum(thread_times_us(proxy).values())
        answers = ask_at_once(ways[way], credentials, clients, prompt, settings)
        proxy_us = (sum(thread_times_us(proxy).values()) - before) / (clients * effort.tokens)
        cost = Cost(
            statistics.median(each.first_ms for each in answers),
            statistics.median(1e3 / each.steady_tokens_per_s for each in answers),
            proxy_us,
        )
        costs[str(clients)][way].append(asdict(cost))
        return cost.token_ms

    cases = {f"{clients} {way}": partial(ask, clients, way) for clients in effort.clients for way in ways}
    collect_interleaved(cases, effort.rounds, warm_up=1)
    return {clients: {way: taken[1:] for way, taken in each.items()} for clients, each in costs.items()}


def ask_at_once(
    address: str,
    credentials: grpc.ChannelCredentials,
    clients: int,
    prompt: Sequence[int],
    settings: AnswerSettings,
) -> list[TimedAnswer]:
    """The answers to as many clients, each over a connection of its own that is open before."""
    made = [PlainClient(address, credentials=credentials) for _ in range(clients)]
    try:
        for each in made:
            each.open()
        with ThreadPoolExecutor(clients) as pool:
            return list(pool.map(lambda client: client.ask(prompt, settings), made))
    finally:
        for each in made:
            each.close()


def render(result: Mapping[str, Any]) -> str:
    """One table: for each number of clients, each way next to the direct one."""
    effort = result["effort"]
    rows = []
    for clients, costs in result["costs"].items():

        def series(way: str, field: str, costs: Mapping[str, Any] = costs) -> list[float]:
            return [float(each[field]) for each in costs[way]]

        base = series(DIRECT, "token_ms")
        for way in costs:
            taken = series(way, "token_ms")
            more_us = Spread.of([1e3 * (ms - direct) for ms, direct in zip(taken, base, strict=True)])
            rows.append(
                [
                    f"{clients}, {way}",
                    Spread.of(taken).text(2),
                    "1" if way == DIRECT else paired_ratio(taken, base).text(3),
                    "" if way == DIRECT else more_us.text(0),
                    Spread.of(series(way, "first_ms")).text(1),
                    Spread.of(series(way, "proxy_us")).text(0) if way == PROXIED else "",
                ]
            )
    head = (
        f"Medians and quartiles of {effort.rounds} rounds; answers of {effort.tokens} tokens by `Generate`, TLS on "
        "every connection; ratios and differences are of pairs. Clients and Envoy share what the server does not use.\n"
    )
    titles = ["clients", "a token, ms", "ratio", "more, us", "first token, ms", "Envoy's CPU, us a token"]
    return "\n".join([facts_line(result), head, table(titles, rows)])
