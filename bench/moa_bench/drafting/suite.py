"""`moa-bench drafting`: one user's answers, drafted by the server, the device or both, against plain streaming.

First the questions are answered in this process, with drafts and without: that gives the limit without a network, and
the questions whose answers are long enough. Then they are asked over links, and of a server whose drafter is untrained.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner
from moa_shared.protocol.levels import INT8

from moa_bench.drafting import tables
from moa_bench.drafting.effort import QUICK, DraftingEffort
from moa_bench.harness.child import Child
from moa_bench.harness.cores import on_cores
from moa_bench.harness.padding import Padding
from moa_bench.harness.servers import running_server
from moa_bench.network.emulated import Link, find_links
from moa_bench.report.experiment import Experiment
from moa_bench.report.report import DRAFTING

if TYPE_CHECKING:
    from moa_shared.programs.progress import Progress

    from moa_bench.drafting.compared import Drafted
    from moa_bench.micro.serving import Traffic

LINKS = ("RTT 0", "4G", "RTT 150 ms", "RTT 300 ms")
UNTRAINED_LINKS = ("RTT 0",)  # what useless drafts cost, they cost at the server
QUICK_LINKS = ("RTT 0", "4G")


def run_drafting(
    *,
    model: str,
    quick: bool,
    json_file: Path | None,
    pin: bool,
    level: str = INT8,
    padding: Padding | None = None,
    links: Sequence[str] = (),
    questions: Path | None = None,
) -> None:
    """Measure and report; the picture goes to docs/img of the checkout, if the results do.

    Args:
        level: of the server's arithmetic.
        padding: what each forward of the target is to cost; None: what it does cost.
        links: only these; none: all.
        questions: a file or folder as `read_questions` takes it; None: the bench's own.

    Raises:
        MoaError: an unknown link, questions that cannot be used, or a server, link or client that fails.
    """
    effort = QUICK if quick else DraftingEffort()
    chosen = find_links(tuple(links) or (QUICK_LINKS if quick else LINKS))
    experiment = Experiment(
        "drafting",
        quick=quick,
        json_file=json_file,
        pin=pin,
        links=[link.name for link in chosen],
        effort=effort,
        level=level,
        padding=padding,
    )
    serve = partial(running_server, model, level=level, padding=padding, cores=experiment.server_cores)
    with on_cores(experiment.own_cores):
        experiment.result |= _measure(model, level, padding, questions, serve, effort, chosen, experiment.own_cores)
    name = None if padding is None else "drafting-padded"
    experiment.publish(tables.render(experiment.result), name=name, page=DRAFTING)
    if (picture := experiment.picture_path("lone-user" if padding is None else "lone-user-padded")) is not None:
        from moa_bench.drafting.picture import draw

        click.echo(draw(experiment.result, chosen, picture))


def _measure(
    model: str,
    level: str,
    padding: Padding | None,
    questions: Path | None,
    serve: Callable[..., AbstractContextManager[Child]],
    effort: DraftingEffort,
    links: Sequence[Link],
    own_cores: set[int] | None,
) -> dict[str, Any]:
    from moa_shared.models import load_tokenizer, resolve

    from moa_bench.drafting.limit import answer_locally, limit_of
    from moa_bench.drafting.local_server import load_local_server
    from moa_bench.harness.drafters import drafter_file, find_drafter, untrained_drafter
    from moa_bench.harness.prompts import QUESTIONS, chat_tokens, read_questions

    progress = make_progress()
    files = resolve(model, progress=progress)
    tokenizer = load_tokenizer(files)
    texts = QUESTIONS if questions is None else read_questions(questions)
    asked = [chat_tokens(tokenizer, text) for text in texts]
    drafter, untrained = find_drafter(files), untrained_drafter(files, 0)
    local = load_local_server(files, drafter, level, padding, progress)
    with progress.task("Answers without a network", effort.questions) as task:
        answered = answer_locally(local, asked, effort, task.advance)
    del local  # the server needs the memory
    prompts = [each.prompt for each in answered]
    measure = partial(_over_links, model, serve, prompts, effort, int(files.config["vocab_size"]), own_cores, progress)
    with tempfile.TemporaryDirectory(prefix="moa-bench-") as folder:
        rows, traffic = measure(str(drafter_file(drafter, Path(folder))), links)
        useless, _ = measure(str(drafter_file(untrained, Path(folder))), find_links(UNTRAINED_LINKS), untrained=True)
    return {
        "target": files.target_id,
        "drafter": drafter.description,
        "untrained_drafter": untrained.description,
        "limit": limit_of(answered),
        "rows": rows,
        "untrained": useless,
        "traffic": traffic,
    }


def _over_links(
    model: str,
    serve: Callable[..., AbstractContextManager[Child]],
    prompts: Sequence[Sequence[int]],
    effort: DraftingEffort,
    vocab_size: int,
    own_cores: set[int] | None,
    progress: Progress,
    drafter: str,
    links: Sequence[Link],
    *,
    untrained: bool = False,
) -> tuple[list[Drafted], list[Traffic]]:
    """All ways and their bytes with the drafter of this path; an untrained one: those in which the server drafts."""
    from moa_bench.drafting.compared import DraftingWays
    from moa_bench.network.compared import PLAIN, count_way
    from moa_bench.network.network import Plan, run_plan

    with serve(drafter=drafter) as server, make_runner() as runner:
        compared = DraftingWays(runner, server.address, model, drafter)
        ways = compared.of_server() if untrained else compared.all()
        plan = Plan(links, ways, [None], prompts, effort.answer_tokens, vocab_size, ignore_end_of_text=False)
        with progress.task(
            "Answers with an untrained drafter" if untrained else "Answers over links", plan.answers
        ) as task:
            rows = compared.rows(run_plan(plan, server.address, own_cores, task.advance))
        if untrained:
            return rows, []
        with progress.task("Bytes"):
            counted = [PLAIN, *ways]
            return rows, [count_way(server.address, way, prompts[0], effort.traffic_tokens) for way in counted]
