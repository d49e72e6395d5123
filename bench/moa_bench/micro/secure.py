"""`moa-bench secure`: what TLS, API keys and metrics cost, next to a server without them.

A variant is some more flags of the server and what its client shows. All servers run at once and answer in turn, so
that each round holds one answer of each; an idle one costs nothing. Processes of one program differ by some percent in
speed for as long as they run, so all are started again several times, and the plain one runs twice: the difference
between these two is what the others' must be compared with. What a variant costs is told better by the CPU time of all
threads but the one that computes, which none of this can slow down.
"""

from __future__ import annotations

import socket
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from moa_server.access.api_key import KeyEntry, hash_of, new_key
from moa_server.access.caller import CallerLimits, Right
from moa_server.access.key_file import changing
from moa_shared.programs.progress import make_progress
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.certificates import make_certificate
from moa_bench.harness.child import Child
from moa_bench.harness.cores import on_cores
from moa_bench.harness.prompts import chat_tokens
from moa_bench.harness.servers import running_server
from moa_bench.report.answers import PlainClient
from moa_bench.report.experiment import Experiment
from moa_bench.report.interleave import collect_interleaved
from moa_bench.report.report import SECURITY, facts_line, table
from moa_bench.report.spread import Spread, paired_ratio

QUESTION = "Explain to a child why the sky is blue."
PLAIN = "neither"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure.

    Args:
        starts: of all servers.
        rounds: of answers after each; `tokens`: of each.
    """

    starts: int = 4
    rounds: int = 8
    tokens: int = 64


QUICK = Effort(1, 2, 16)


@dataclass(frozen=True, slots=True)
class Variant:
    """A server and its client.

    Args:
        flags: more of `moa-server serve`.
        authority: file of the server's authority; None: without TLS.
        key: that the client shows; empty: none.
        metrics_port: of its metrics, which are read each second while it answers; 0: it has none.
    """

    name: str
    flags: tuple[str, ...] = ()
    authority: Path | None = None
    key: str = ""
    metrics_port: int = 0

    def client(self, address: str) -> PlainClient:
        """A client with a connection of its own."""
        credentials = grpc.ssl_channel_credentials(self.authority.read_bytes()) if self.authority is not None else None
        return PlainClient(address, credentials=credentials, key=self.key)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one answer took.

    Args:
        connect_ms: until the connection was open.
        besides_us: CPU time of the server's threads but for the one that computes, a token.
    """

    tokens_per_s: float
    connect_ms: float
    besides_us: float


def run_secure(*, quick: bool, json_file: Path | None, model: str, level: str, pin: bool) -> None:
    """Measure and report.

    Raises:
        MoaError: a server that fails.
    """
    from moa_shared.models import load_tokenizer, resolve

    effort = QUICK if quick else Effort()
    experiment = Experiment("secure", quick=quick, json_file=json_file, pin=pin, effort=effort, target=model)
    progress = make_progress()
    prompt = chat_tokens(load_tokenizer(resolve(model, progress=progress)), QUESTION)
    costs: dict[str, list[dict[str, float]]] = {}
    with on_cores(experiment.own_cores), progress.task("Secure", effort.starts) as task:
        for _ in range(effort.starts):
            with tempfile.TemporaryDirectory(prefix="moa-bench-") as folder, ExitStack() as stack:
                servers = {
                    variant: stack.enter_context(
                        running_server(model, level=level, flags=variant.flags, cores=experiment.server_cores)
                    )
                    for variant in make_variants(Path(folder))
                }
                for name, taken in measure_round_by_round(servers, prompt, effort).items():
                    costs.setdefault(name, []).extend(map(asdict, taken))
            task.advance(1)
    experiment.result["costs"] = costs
    experiment.publish(render(experiment.result), page=SECURITY)


def measure_round_by_round(
    servers: Mapping[Variant, Child], prompt: Sequence[int], effort: Effort
) -> dict[str, list[Cost]]:
    """What the answers of each took, after one round that does not count."""
    settings = AnswerSettings(max_tokens=effort.tokens, ignore_end_of_text=True)
    costs: dict[str, list[Cost]] = {variant.name: [] for variant in servers}

    def measure(variant: Variant, server: Child) -> float:
        client = variant.client(server.address)
        try:
            began = time.perf_counter()
            client.open()
            connect_ms = 1e3 * (time.perf_counter() - began)
            before = thread_times_us(server.process.pid)
            with _scraping(variant.metrics_port):
                answer = client.ask(prompt, settings)
            after = thread_times_us(server.process.pid)
        finally:
            client.close()
        spent = [us - before.get(thread, 0.0) for thread, us in after.items()]
        besides_us = (sum(spent) - max(spent)) / len(answer.tokens)
        costs[variant.name].append(Cost(answer.steady_tokens_per_s, connect_ms, besides_us))
        return answer.steady_tokens_per_s

    cases = {variant.name: partial(measure, variant, server) for variant, server in servers.items()}
    collect_interleaved(cases, effort.rounds, warm_up=1)
    return {name: taken[1:] for name, taken in costs.items()}


def make_variants(folder: Path) -> tuple[Variant, ...]:
    """Those to compare, the plain one first; their files go into a folder."""
    certificate, private_key = make_certificate(folder)
    key, keys = new_key(), folder / "keys.toml"
    with changing(keys) as book:
        entry = KeyEntry("bench", hash_of(key), frozenset(Right), CallerLimits(), datetime.now(UTC), None)
        book[0] = book[0].with_entry(entry)
    with_tls = ("--tls-cert", str(certificate), "--tls-key", str(private_key))
    with_keys = ("--keys-file", str(keys))
    return (
        Variant(PLAIN),
        Variant(f"{PLAIN}, another process"),
        Variant("TLS", with_tls, certificate),
        Variant("keys", with_keys, key=key),
        Variant("TLS and keys", (*with_tls, *with_keys), certificate, key),
        metrics_variant(),
    )


def metrics_variant() -> Variant:
    """A server whose metrics are read."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    return Variant("metrics", ("--metrics-port", str(port)), metrics_port=port)


@contextmanager
def _scraping(port: int) -> Iterator[None]:
    """Reads metrics each second, which is fifteen times as often as Prometheus usually does; port 0: not at all."""
    ended = threading.Event()

    def scrape() -> None:
        while port and not ended.is_set():
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                page.read()
            ended.wait(1.0)

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def thread_times_us(pid: int) -> dict[str, float]:
    """CPU time of each thread of a process, from Linux's scheduler."""
    times = {}
    for each in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended since
            times[each.name] = int((each / "schedstat").read_text().split()[0]) / 1e3
    return times


def render(result: Mapping[str, Any]) -> str:
    """One table: each variant next to the plain one."""
    costs, effort = result["costs"], result["effort"]

    def series(name: str, field: str) -> list[float]:
        return [float(each[field]) for each in costs[name]]

    step_us = 1e6 / Spread.of(series(PLAIN, "tokens_per_s")).median
    plain_us = series(PLAIN, "besides_us")
    rows = []
    for name in costs:
        besides_us = series(name, "besides_us")
        more = Spread.of([us - plain for us, plain in zip(besides_us, plain_us, strict=True)])
        ratio = paired_ratio(series(name, "tokens_per_s"), series(PLAIN, "tokens_per_s"))
        rows.append(
            [
                name,
                Spread.of(series(name, "tokens_per_s")).text(1),
                "1" if name == PLAIN else ratio.text(3),
                Spread.of(besides_us).text(0),
                "" if name == PLAIN else f"{more.text(0)}, {100 * more.median / step_us:+.2f} %",
                Spread.of(series(name, "connect_ms")).text(1),
            ]
        )
    head = (
        f"Medians and quartiles of {effort.starts * effort.rounds} answers of {effort.tokens} tokens each, by "
        f"`Generate` on loopback, in turn; all servers were started {effort.starts} times. "
        "Ratios and differences are of pairs. "
        "Besides the model: all threads of the server but the one that computes; the percentage is of a step.\n"
    )
    titles = ["", "tokens/s", "ratio", "CPU besides the model, us a token", "more", "new connection, ms"]
    return "\n".join([facts_line(result), head, table(titles, rows)])
