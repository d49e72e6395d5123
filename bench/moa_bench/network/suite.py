"""`moa-bench network`: runs the plans and reports them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from moa_shared.drafter.checkpoint.shipped import DEFAULT_DRAFTER
from moa_shared.errors import ConfigError
from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner
from moa_shared.protocol.levels import INT8

from moa_bench.harness.child import Child
from moa_bench.harness.cores import on_cores
from moa_bench.harness.padding import Padding
from moa_bench.harness.servers import running_server
from moa_bench.network import tables
from moa_bench.network.emulated import Link, find_links
from moa_bench.report.experiment import Experiment
from moa_bench.report.report import LINK


@dataclass(frozen=True, slots=True)
class NetworkEffort:
    """How much to measure.

    Args:
        acceptances: of the oracle.
        answer_tokens: 64 are a paragraph, and cost 3 s when streamed.
        prompts: of the oracle's plan, and as many of the real drafter's.
        draft_ms: of a step of the oracle: a device somewhat slower than one core here, as in the event simulation.
        traffic_tokens: of an answer whose bytes are counted.
        starts: answers to a prompt of about `start_tokens` tokens, for the time to the first token and the first draft.
    """

    acceptances: tuple[float, ...] = (0.0, 0.35, 0.65, 0.8, 0.9)
    answer_tokens: int = 64
    prompts: int = 2
    draft_ms: float = 5.0
    traffic_tokens: int = 128
    starts: int = 5
    start_tokens: int = 500


QUICK = NetworkEffort((0.8,), 12, 1, traffic_tokens=16, starts=1, start_tokens=100)
START_LINKS = ("RTT 0", "4G", "RTT 150 ms")


def run_network(
    *,
    model: str,
    quick: bool,
    json_file: Path | None,
    pin: bool,
    level: str = INT8,
    drafter: str = DEFAULT_DRAFTER,
    padding: Padding | None = None,
    links: Sequence[str] = (),
    acceptances: Sequence[float] = (),
) -> None:
    """Measure and report.

    Args:
        level: of the server's arithmetic.
        drafter: "default", "deep", "auto" (the client chooses) or a checkpoint's path.
        padding: what each forward of the target is to cost; None: what it does cost.
        links, acceptances: only these; none: all.

    Raises:
        MoaError: an unknown link, or a server, link or client that fails.
    """
    effort = QUICK if quick else NetworkEffort()
    chosen_links = find_links(tuple(links)) if links or not quick else find_links(("RTT 0", "4G"))
    chosen = tuple(acceptances) or effort.acceptances
    if any(not 0.0 <= acceptance <= 1.0 for acceptance in chosen):
        raise ConfigError(f"The acceptances are {chosen}, each must be 0 to 1.", hint="Correct --acceptance.")
    experiment = Experiment(
        "network",
        quick=quick,
        json_file=json_file,
        pin=pin,
        links=[link.name for link in chosen_links],
        effort=effort,
        level=level,
        padding=padding,
    )
    serve = partial(running_server, model, level=level, padding=padding, cores=experiment.server_cores)
    with on_cores(experiment.own_cores):
        experiment.result |= _measure(model, drafter, serve, effort, chosen_links, chosen, experiment.own_cores)
    experiment.publish(tables.render(experiment.result), name=None if padding is None else "network-padded", page=LINK)


def _measure(
    model: str,
    named_drafter: str,
    serve: Callable[..., AbstractContextManager[Child]],
    effort: NetworkEffort,
    links: Sequence[Link],
    acceptances: Sequence[float],
    own_cores: set[int] | None,
) -> dict[str, Any]:
    from moa_shared.models import load_tokenizer, resolve

    from moa_bench.harness.drafters import both_ends, find_drafter
    from moa_bench.harness.prompts import QUESTIONS, chat_tokens, question_of
    from moa_bench.network.compared import ComparedWays, count_bytes
    from moa_bench.network.network import SURE_QUESTIONS, Plan, run_plan
    from moa_bench.network.starting import measure_start

    progress = make_progress()
    files = resolve(model, progress=progress)
    tokenizer = load_tokenizer(files)
    measured = find_drafter(files, named_drafter)
    vocab_size = int(files.config["vocab_size"])
    sure = [chat_tokens(tokenizer, question) for question in SURE_QUESTIONS[: effort.prompts]]
    open_questions = [chat_tokens(tokenizer, question) for question in QUESTIONS[: effort.prompts]]
    with tempfile.TemporaryDirectory(prefix="moa-bench-") as folder, make_runner() as runner:
        served, drafter = both_ends(named_drafter, measured, Path(folder))
        with serve(drafter=served) as server:
            ways = ComparedWays(runner, server.address, model, drafter, effort.draft_ms)
            oracle = Plan(links, ways.oracle(), acceptances, sure, effort.answer_tokens, vocab_size)
            real = Plan(links, ways.real(), [None], open_questions, effort.answer_tokens, vocab_size)
            cells = []
            with progress.task("Answers over links", oracle.answers + real.answers) as task:
                for plan in (oracle, real):
                    cells += run_plan(plan, server.address, own_cores, task.advance)
            with progress.task("Bytes"):
                traffic = count_bytes(ways, sure[0], open_questions[0], effort.traffic_tokens, vocab_size)
            with progress.task("How answers begin"):
                prompt = chat_tokens(tokenizer, question_of(tokenizer, effort.start_tokens))
                starts = [
                    measure_start(link, server.address, ways.connect_tree, prompt, effort.starts, cores=own_cores)
                    for link in links
                    if link.name in START_LINKS
                ]
    return {
        "target": files.target_id,
        "drafter": measured.description,
        "cells": cells,
        "traffic": traffic,
        "starts": starts,
    }
