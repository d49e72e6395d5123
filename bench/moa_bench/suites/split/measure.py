"""A round of all methods for each link and question."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path

from moa_shared.drafter.checkpoint.shipped import DEFAULT_DRAFTER
from moa_shared.models import load_tokenizer, resolve
from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner

from moa_bench.harness.cores import on_cores
from moa_bench.harness.cpu import process_cpu_s
from moa_bench.harness.drafters import UNTRAINED, both_ends, find_drafter
from moa_bench.harness.links import find_links
from moa_bench.harness.prompts import chat_tokens, questions_of
from moa_bench.harness.recorded import recorded_link
from moa_bench.harness.servers import running_server
from moa_bench.suite import Result, Run
from moa_bench.suites.split.methods import Devices, methods_of, reaching, serving_all
from moa_bench.suites.split.names import ORACLES
from moa_bench.suites.split.oracles import DRAFT_MS, OracleDevices, oracle_methods, oracle_name
from moa_bench.suites.split.rounds import ask_round
from moa_bench.suites.split.suite import SplitEffort

SHIPPED = {"MoA, N = 3": "default", "MoA, N = 12": "deep"}


def measure(effort: SplitEffort, run: Run) -> Result:
    """The rounds; each is a cell.

    Raises:
        MoaError: an unknown link, a drafter that cannot be used, or a server, link or plain streaming that fails.
    """
    links = [*find_links(effort.links), *(recorded_link(trace) for trace in run.traces)]
    acceptances = effort.acceptances if run.is_sized else ()
    progress = make_progress()
    files = resolve(run.model, progress=progress)
    tokenizer = load_tokenizer(files)
    asked = (
        prompt
        for text in questions_of(run.questions)
        if len(prompt := chat_tokens(tokenizer, text)) <= effort.longest_prompt
    )
    prompts = list(islice(asked, effort.questions))
    named = (
        {UNTRAINED: DEFAULT_DRAFTER}
        if acceptances
        else SHIPPED | {name: str(path) for name, path in run.drafters.items()}
    )
    measured = {name: find_drafter(files, given) for name, given in named.items()}
    serve = partial(running_server, run.model, level=run.level, cores=run.server_cores)
    rounds = []
    with ExitStack() as stack:
        stack.enter_context(on_cores(run.own_cores))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moa-bench-")))
        runner = stack.enter_context(make_runner())
        ends = {name: both_ends(named[name], each, folder) for name, each in measured.items()}
        clients = {name: own for name, (_, own) in ends.items()}
        servers = stack.enter_context(serving_all({name: served for name, (served, _) in ends.items()}, serve))
        if acceptances:
            methods = oracle_methods(UNTRAINED, acceptances, effort.chain)
            sizes = effort.answer_tokens, effort.chain
            devices: Devices = OracleDevices(runner, run.model, methods, clients, servers, *sizes)
        else:
            methods = methods_of(clients, effort.chain)
            devices = Devices(runner, run.model, methods, clients, servers)
        serving = {method.name: servers[method.drafter].process.pid for method in methods}
        with progress.task("Questions", len(links) * len(prompts)) as task:
            for link in links:
                with reaching(link, servers, run.own_cores) as reach:
                    for number, prompt in enumerate(prompts):
                        way = partial(reach, share=number / len(prompts))
                        ask = partial(
                            ask_round,
                            {each.name: partial(devices.client, each, prompt, way) for each in methods},
                            prompt,
                            effort.answer_tokens,
                            lambda method: process_cpu_s(serving[method]),
                            number,
                        )
                        rounds.append(run.keep(f"{link.name} {number}", ask) | {"link": link.name})
                        task.advance(1)
    return {
        "name": ORACLES if acceptances else "split",
        "target": files.target_id,
        "drafters": {oracle_name(each): f"right at that rate, {DRAFT_MS:g} ms a draft step" for each in acceptances}
        or {name: each.description for name, each in measured.items()},
        "links": {each.name: {"rtt_ms": each.rtt_ms, "recorded": each.recording is not None} for each in links},
        "rounds": rounds,
    }
