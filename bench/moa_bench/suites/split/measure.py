"""`moa-bench split`: one question over one link after the other, asked of all methods in turn; plain streaming is first
and last.

Each drafter has a server of its own that gives it memory. For targets that no drafter was trained for, oracles take the
drafter's place: the target writes each text beforehand.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal

from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings
from moa_client.settings import ClientSettings
from moa_server.verifier.startup_check import measure_times
from moa_shared.drafter.checkpoint import DEFAULT_DRAFTER, shipped_drafter
from moa_shared.errors import MoaError
from moa_shared.models import load_tokenizer, resolve
from moa_shared.models.files import asked_sampling
from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner
from moa_shared.protocol.messages import AnswerSettings

from moa_bench.harness.child import Child, running_server
from moa_bench.harness.links import find_links, linked
from moa_bench.harness.oracle import DRAFT_MS, ROUNDS, SECOND_GUESS, Script, has_no_drafter, with_oracle
from moa_bench.harness.questions import chat_tokens, questions_of
from moa_bench.harness.split_client import (
    PlainClient,
    SplitClient,
    common_tokens,
    describe,
    load_split_device,
)
from moa_bench.harness.stage import UNTRAINED, find_drafter, load_level
from moa_bench.machine import on_cores, rotated
from moa_bench.registry import SplitEffort
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.split.tables import ALL, CO_LOCATED, PLAIN, STREAMED, SYNCHRONOUS, render


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    drafter: str  # whose server is asked
    mode: DraftingSettings | None  # how to draft; None: plain streaming
    device: Literal["chain", "tree", "auto"] = "tree"  # what the client holds of it, or its own choice
    acceptance: float | None = None  # of an oracle in the drafter's place
    guesses: Literal["chain", "tree"] = "chain"  # of the oracle


def methods_of(drafters: Sequence[str]) -> list[Method]:
    """All methods, plain streaming first; what needs no drafter is asked of the first one's server."""
    first, streamed = drafters[0], DraftingSettings(drafting="device", tree=True)
    both = {SYNCHRONOUS: replace(ROUNDS, tree=True), STREAMED: streamed}
    return [
        Method(PLAIN, first, None),
        Method(CO_LOCATED, first, DraftingSettings(drafting="server"), "tree"),
        *(Method(f"{name}: {way}", name, mode, "tree") for name in drafters for way, mode in both.items()),
        Method(ALL, first, DraftingSettings(tree=True), "auto"),
    ]


def oracle_methods(server: str, acceptances: Sequence[float]) -> list[Method]:
    """Plain streaming, streamed chains of an oracle of each acceptance, and of the best one rounds, and trees."""
    streamed = DraftingSettings(drafting="device")
    chains = [Method(f"oracle, {each:g}: {STREAMED}", server, streamed, "chain", each) for each in acceptances]
    best = max(acceptances)
    others = [Method(f"oracle, {best:g}: {SYNCHRONOUS}", server, ROUNDS, "chain", best)]
    if 0 < best < 1:
        name, growing = f"oracle, {best:g}, trees", replace(streamed, tree=True)
        others += [
            Method(f"{name}: {SYNCHRONOUS}", server, ROUNDS, "chain", best, "tree"),
            Method(f"{name}: {STREAMED}", server, growing, "chain", best, "tree"),
        ]
    return [Method(PLAIN, server, None), *chains, *others]


class Devices:
    """What clients hold, by drafter and shape; of oracles, the texts."""

    def __init__(
        self,
        runner: asyncio.Runner,
        model: str,
        methods: Sequence[Method],
        drafters: Mapping[str, str],
        servers: Mapping[str, Child],
        effort: SplitEffort,
        settings: AnswerSettings,
    ) -> None:
        self._settings = settings
        self._runner = runner
        self._servers = servers
        self._effort = effort
        self._held: dict[tuple[str, str], Device] = {}
        self._texts: dict[tuple[int, ...], tuple[int, ...]] = {}
        for method in methods:
            if method.mode is None or (method.drafter, method.device) in self._held:
                continue
            program = ClientSettings(
                server=servers[method.drafter].address,
                model=model,
                drafter="auto" if method.device == "auto" else drafters[method.drafter],
                mode="tree" if method.device == "auto" else method.device,
            )
            self._held[method.drafter, method.device] = load_split_device(runner, program)

    def client(self, method: Method, prompt: Sequence[int], address: str) -> SplitClient | PlainClient:
        """A new client of this way to answer over an address; only an oracle knows beforehand what it will be asked."""
        if method.mode is None:
            return PlainClient(address)
        device = self._held[method.drafter, method.device]
        if method.acceptance is not None:
            vocab_size = int(device.target.files.config["vocab_size"])
            text = (*prompt, *self._text(method, tuple(prompt)))
            twice = method.guesses == "tree"
            script = Script(text, method.acceptance, 0, vocab_size, SECOND_GUESS if twice else 0.0)
            device = with_oracle(device, script, DRAFT_MS, twice=twice)
        mode = replace(method.mode, rounds=self._effort.chain) if method.mode.rounds else method.mode
        return SplitClient(self._runner, address, device, mode=mode)

    def _text(self, method: Method, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """What the target writes, by plain streaming without a link."""
        if prompt not in self._texts:
            with closing(PlainClient(self._servers[method.drafter].address)) as client:
                self._texts[prompt] = client.ask(prompt, self._settings).tokens
        return self._texts[prompt]


__all__ = ["measure", "render"]
WARM_UP_TOKENS = 8
SHIPPED = {"MoA, N = 3": "default", "MoA, N = 12": "deep"}
Connect = Callable[[], SplitClient | PlainClient]


def measure(effort: SplitEffort, run: SuiteRun) -> Result:
    links = find_links(effort.links)
    files = resolve(run.model, progress=make_progress())
    tokenizer = load_tokenizer(files)
    asked = (chat_tokens(tokenizer, text) for text in questions_of(run.questions))
    prompts = list(islice((prompt for prompt in asked if len(prompt) <= effort.longest_prompt), effort.asked))
    sampling = asked_sampling(effort.temperature, files)
    settings = AnswerSettings(sampling, max_tokens=effort.answer_tokens, ignore_end_of_text=True)
    has_oracles = has_no_drafter(files, run.drafters)
    if has_oracles:
        named, methods = {UNTRAINED: DEFAULT_DRAFTER}, oracle_methods(UNTRAINED, effort.acceptances)
    else:
        shipped = SHIPPED if shipped_drafter(files.fingerprint) is not None else {}
        named = shipped | {name: str(path) for name, path in run.drafters.items()}
        methods = methods_of(list(named))
    measured = {name: find_drafter(files, given) for name, given in named.items()}
    rounds = []
    with ExitStack() as stack:
        stack.enter_context(on_cores(run.own_cores))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moa-bench-")))
        runner = stack.enter_context(make_runner())
        paths = {name: drafter.file(folder) for name, drafter in measured.items()}
        servers = {
            name: stack.enter_context(running_server(run.model, level=run.level, cores=run.server_cores, drafter=path))
            for name, path in paths.items()
        }
        for server in servers.values():
            with closing(PlainClient(server.address)) as client:  # first forwards set up kernels and caches
                client.ask(prompts[0], AnswerSettings(max_tokens=WARM_UP_TOKENS))
        devices = Devices(runner, run.model, methods, paths, servers, effort, settings)
        serving = {method.name: servers[method.drafter] for method in methods}
        task = stack.enter_context(make_progress().task("Questions", len(links) * len(prompts)))
        for link in links:
            with ExitStack() as over:
                at = {
                    name: over.enter_context(linked(link, server.address, cores=run.own_cores)).address
                    for name, server in servers.items()
                }
                for number, prompt in enumerate(prompts):
                    connect = {each.name: partial(devices.client, each, prompt, at[each.drafter]) for each in methods}
                    used = {name: server.cpu_s for name, server in serving.items()}
                    ask = partial(ask_round, connect, prompt, settings, used, number)
                    rounds.append(run.keep(f"{link.name} {number}", ask) | {"link": link.name})
                    task.advance(1)
        first = runner.run(describe(next(iter(servers.values())).address))
    with on_cores(run.server_cores):  # milliseconds of forwards with several rows
        execution = load_level(files, run.level, make_progress())
        times = (execution.test or measure_times(execution.target)).times
    drafters = {name: each.description for name, each in measured.items()}
    if has_oracles:
        said = f"right at that rate, {DRAFT_MS:g} ms a draft step"
        drafters = {name: said for name in dict.fromkeys(each.name.rpartition(": ")[0] for each in methods) if name}
    return {
        "target": files.target_id,
        "has_oracles": has_oracles,
        "costs": {"step_ms": round(first.step_ms, 3), "times": [(rows, round(ms, 3)) for rows, ms in times]},
        "drafters": drafters,
        "links": [each.name for each in links],
        "rounds": rounds,
    }


def ask_round(
    connect: Mapping[str, Connect],
    prompt: Sequence[int],
    settings: AnswerSettings,
    server_cpu_s: Mapping[str, Callable[[], float]],
    turn: int = 0,
) -> dict[str, Any]:
    """{"prompt_tokens", "answers": {method: [what each answer took]}} of one question.

    Args:
        connect: new clients by method, PLAIN's among them.
        server_cpu_s: processor time that each method's server has used so far.
        turn: which of the methods begins after plain streaming.
    """

    def ask(name: str, reference: Sequence[int] = ()) -> tuple[dict[str, Any], tuple[int, ...]]:
        """One answer over a connection that is open already: what it took, and its tokens."""
        with closing(connect[name]()) as client:
            client.ask(prompt[:1], AnswerSettings(max_tokens=1))  # opens what opens at the first call
            server_s, own_s = server_cpu_s[name](), time.process_time()
            answer = client.ask(prompt, settings)
            own_s, server_s = time.process_time() - own_s, server_cpu_s[name]() - server_s
        counted = client.figures if isinstance(client, SplitClient) else client
        arrivals_s = dict.fromkeys(answer.arrivals_s)
        took = {
            "tokens": len(answer.tokens),
            "first_ms": round(answer.first_ms, 3),
            "seconds": round(answer.arrivals_s[-1], 5),
            # Times between arrivals of text; tokens of one verdict arrive together.
            "gaps_ms": [round(1e3 * (after - before), 2) for before, after in pairwise(arrivals_s)],
            "forwards": client.figures.verdicts if isinstance(client, SplitClient) else len(answer.tokens),
            "up": counted.up_bytes,
            "down": counted.down_bytes,
            "server_cpu_s": round(server_s, 4),
            "own_cpu_s": round(own_s, 4),
            "common": common_tokens(answer.tokens, reference),
            "same": not reference or tuple(reference) == answer.tokens,
        }
        return took, answer.tokens

    plain, first = ask(PLAIN)
    taken = {PLAIN: [plain]}
    for name in rotated([name for name in connect if name != PLAIN], turn):
        try:
            taken[name] = [ask(name, first)[0]]
        except MoaError as error:
            taken[name] = [{"failure": str(error)}]
    taken[PLAIN].append(ask(PLAIN, first)[0])
    return {"prompt_tokens": len(prompt), "answers": taken}
