"""`moa-bench restarts`: one server, restarted again and again under clients that ask without end.

State: the server at one address, and perhaps another one that it names as its successor. Each text is written once
before, without restarts, to compare with.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from moa_shared.errors import DataError
from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner

from moa_bench.fleet.clients import Clients
from moa_bench.fleet.replicas import Replica, Restart, free_addresses
from moa_bench.fleet.texts import make_questions, write_texts
from moa_bench.harness.cores import on_cores
from moa_bench.report.experiment import Experiment
from moa_bench.report.report import LINK
from moa_bench.restarts import tables
from moa_bench.restarts.figures import Survived


@dataclass(frozen=True, slots=True)
class RestartEffort:
    """What is restarted, how often, and under whom.

    Args:
        between_s: from when the server can be called until the next restart.
        grace_s: of a drain; short, so that answers are interrupted.
        end_s: that a server may take to end, besides its grace.
        kill: the server is killed instead of asked to end.
        successor: another server goes on meanwhile, which the first one names.
    """

    restarts: int = 20
    clients: int = 16
    texts: int = 16
    answer_tokens: int = 64
    between_s: float = 3.0
    grace_s: float = 1.0
    end_s: float = 15.0
    kill: bool = False
    successor: bool = False


QUICK = RestartEffort(restarts=2, clients=3, texts=3, answer_tokens=24, grace_s=0.2)


def run_restarts(
    *, model: str, drafter: str, level: str, quick: bool, json_file: Path | None, pin: bool, effort: RestartEffort
) -> None:
    """Restarts, compares and reports.

    Args:
        drafter: of server and clients.

    Raises:
        DataError: an answer was lost or is another than without restarts.
        MoaError: the server does not end or start.
    """
    experiment = Experiment("restarts", quick=quick, json_file=json_file, pin=pin, effort=effort, level=level)
    from moa_client.link.channel import Link
    from moa_shared.models import load_tokenizer, resolve

    from moa_bench.capacity.shipped_device import device_maker
    from moa_bench.harness.drafters import drafter_file, find_drafter
    from moa_bench.harness.servers import running_server
    from moa_bench.harness.split_client import client_settings, load_split_device

    progress = make_progress()
    files = resolve(model, progress=progress)
    tokenizer = load_tokenizer(files)
    questions = make_questions(tokenizer, effort.texts, effort.answer_tokens)
    with on_cores(experiment.own_cores), make_runner() as runner, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moa-bench-")))
        held = find_drafter(files) if drafter != "none" else None
        path = "none" if held is None else str(drafter_file(held, folder))
        cores = experiment.server_cores
        serve = partial(running_server, model, level=level, drafter=path, cores=cores)
        flags = ["--grace-seconds", f"{effort.grace_s:g}"]
        if effort.successor:
            other = stack.enter_context(serve(flags=flags)).address
            flags += ["--peers", other]
        [address] = free_addresses(1)
        server = Replica(address, lambda port: serve(port=port, flags=flags), effort.grace_s + effort.end_s)
        stack.callback(server.close)
        server.start()
        program = client_settings(server=address, model=model, drafter=path)
        device = load_split_device(runner, program)
        make_device = None if held is None else device_maker(device, held)
        devices = [device if make_device is None else make_device() for _ in range(effort.clients)]
        with progress.task("Texts", len(questions)) as task:
            texts, _ = write_texts(address, questions, lambda: task.advance(1))

        def connect(client: int, note: object) -> Link:
            return Link(address, program.connect_seconds, program.silence_seconds)

        clients = Clients(connect, devices, questions, int(files.config["vocab_size"]))
        with progress.task("Restarts", effort.restarts) as task:
            restarts = runner.run(_restart_under(clients, server, effort, lambda: task.advance(1)))
    survived = Survived.of(clients.asked, texts, restarts)
    experiment.result |= {
        "target": files.target_id,
        "drafter": "none" if held is None else held.description,
        "survived": survived,
        "restarts": restarts,
    }
    name = "restarts" + ("-kill" if effort.kill else "") + ("-successor" if effort.successor else "")
    experiment.publish(tables.render(experiment.result), name=name, page=LINK)
    if survived.lost or survived.different:
        raise DataError(
            f"{survived.lost} answers were lost and {survived.different} differ: {' '.join(survived.failures)}",
            hint="Look at the servers' logs.",
        )


async def _restart_under(
    clients: Clients, server: Replica, effort: RestartEffort, on_restart: Callable[[], None]
) -> list[Restart]:
    """Restarts while clients ask; what they have asked until then is answered."""
    restarts: list[Restart] = []
    asking = asyncio.create_task(clients.ask_until(lambda: len(restarts) == effort.restarts))
    restart = partial(server.restart, kill=effort.kill)
    try:
        while len(restarts) < effort.restarts:
            await asyncio.sleep(effort.between_s)
            restarts.append(await asyncio.to_thread(restart))
            on_restart()
        await asking
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    return restarts
