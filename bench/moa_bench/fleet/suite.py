"""`moa-bench fleet`: replicas killed, drained, joined and cut off under clients that ask without end.

State: of each scenario, the fleet and its clients. Each text is written once before, undisturbed, to compare with. What
was measured is written after each scenario, and when one is interrupted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moa_shared.errors import DataError
from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner

from moa_bench.fleet import tables
from moa_bench.fleet.outcome import Outcome
from moa_bench.fleet.replicas import Replica, free_addresses
from moa_bench.fleet.scenarios import SCENARIOS, FleetEffort, Scene
from moa_bench.fleet.texts import Question, make_questions, write_texts
from moa_bench.fleet.throughput import ThroughputEffort, compare_throughput, two_cores
from moa_bench.harness.cores import on_cores
from moa_bench.report.experiment import Experiment

if TYPE_CHECKING:
    import asyncio

    from moa_client.device.loading import Device
    from moa_client.settings import ClientSettings
    from moa_shared.models import ModelFiles

    from moa_bench.harness.drafters import MeasuredDrafter

PAGE, RAY_PAGE = "fleet/measurements.md", "fleet/ray.md"
SCALING = "phases of load, scaled by Ray"
PICTURES = ("update", "scale")  # scenarios that are drawn


class FleetRun:
    """Plays scenarios, each with a fleet of its own.

    Args:
        drafter: of replicas and clients: "default" or "none".
    """

    def __init__(self, experiment: Experiment, model: str, drafter: str, effort: FleetEffort) -> None:
        self._experiment = experiment
        self._model, self._drafter = model, drafter
        self._effort = effort
        self._progress = make_progress()
        self._texts: tuple[list[tuple[int, ...]], float] | None = None

    def prepare(self) -> None:
        """Finds model, drafter and questions.

        Raises:
            MoaError: the model cannot be had.
        """
        from moa_shared.models import load_tokenizer, resolve

        from moa_bench.harness.drafters import find_drafter

        self._files: ModelFiles = resolve(self._model, progress=self._progress)
        self._held: MeasuredDrafter | None = find_drafter(self._files) if self._drafter != "none" else None
        effort = self._effort
        self._questions: list[Question] = make_questions(
            load_tokenizer(self._files), effort.texts, effort.answer_tokens
        )
        self._experiment.result |= {
            "target": self._files.target_id,
            "drafter": "none" if self._held is None else self._held.description,
            "scenarios": {},
        }

    def play(self, name: str, runner: asyncio.Runner) -> Outcome:
        """Plays one scenario and keeps what the clients met, also when it is interrupted.

        Raises:
            MoaError: a replica does not end or start.
        """
        with on_cores(self._experiment.own_cores), ExitStack() as stack:
            return self._play_on(name, runner, stack)

    def _play_on(self, name: str, runner: asyncio.Runner, stack: ExitStack) -> Outcome:
        from moa_bench.fleet.stage import Stage, play
        from moa_bench.harness.split_client import client_settings

        effort, scenario = self._effort, SCENARIOS[name]
        path = self._drafter_path(stack)
        replicas = self._make_replicas(scenario.all(effort), path, stack)
        for each in replicas[: scenario.first(effort)]:
            each.start()
        program = client_settings(server=replicas[0].address, model=self._model, drafter=path)
        devices = self._make_devices(runner, program)
        texts, alone_first_s = self._write_texts(replicas[0].address)
        stage = Stage(replicas, devices, self._questions, self._vocab_size, program)
        clients = stage.make_clients()
        clients.active = scenario.active(effort)
        done, is_complete = 0, False
        with self._progress.task(scenario.title.capitalize(), scenario.times(effort)) as task:

            def on_done() -> None:
                nonlocal done
                done += 1
                task.advance(1)

            scene = Scene(stage, clients, effort, stack, self._experiment.own_cores, on_done)
            try:
                runner.run(play(clients, partial(scenario.script, scene), effort.between_s))
                is_complete = True
            finally:
                asked = [each for each in clients.asked if is_complete or each.tokens or each.failure]
                outcome = Outcome.of(asked, texts, stage.incidents, stage.addresses)
                self._keep(
                    name,
                    {
                        "title": scenario.title, "done": done, "is_complete": is_complete, "facts": scene.facts,
                        "alone_first_s": round(alone_first_s, 3), "outcome": outcome,
                    },
                )  # fmt: skip
        return outcome

    def play_on_ray(self, runner: asyncio.Runner) -> Outcome:
        """Lets Ray scale a fleet by its load; the load rises and falls.

        Raises:
            MoaError: Ray or a replica does not start, or Ray does not follow the load.
        """
        from moa_bench.cluster.scale import ray_fleet, rise_and_fall
        from moa_bench.fleet.stage import make_clients, play
        from moa_bench.harness.split_client import client_settings

        effort = self._effort
        with ExitStack() as stack:
            path = self._drafter_path(stack)
            fleet = stack.enter_context(ray_fleet(self._model, self._experiment.result["level"], path, effort))
            runner.run(fleet.look())
            program = client_settings(server=fleet.members[0], model=self._model, drafter=path)
            devices = self._make_devices(runner, program)
            texts, alone_first_s = self._write_texts(fleet.members[0])
            clients = make_clients(fleet.connector(program), devices, self._questions, self._vocab_size)
            facts: dict[str, float] = {}
            with self._progress.task(SCALING, 3) as task:
                script = partial(rise_and_fall, fleet, clients, effort, lambda: task.advance(1), facts)
                runner.run(play(clients, script, effort.between_s))
            outcome = Outcome.of(clients.asked, texts, fleet.incidents, fleet.seen)
        played = {
            "title": SCALING, "done": 3, "is_complete": True, "facts": facts, "alone_first_s": round(alone_first_s, 3),
            "outcome": outcome,
        }  # fmt: skip
        self._experiment.result["scenarios"] = {"scale": played}
        self._experiment.publish(tables.render(self._experiment.result, "scale"), page=RAY_PAGE)
        self._draw("fleet-ray-scale", played)
        return outcome

    @property
    def _vocab_size(self) -> int:
        return int(self._files.config["vocab_size"])

    def _make_devices(self, runner: asyncio.Runner, program: ClientSettings) -> list[Device]:
        """One for each client; they share one where there is no drafter."""
        from moa_bench.capacity.shipped_device import device_maker
        from moa_bench.harness.split_client import load_split_device

        device = load_split_device(runner, program)
        make = None if self._held is None else device_maker(device, self._held)
        return [device if make is None else make() for _ in range(self._effort.clients)]

    def _drafter_path(self, stack: ExitStack) -> str:
        from moa_bench.harness.drafters import drafter_file

        if self._held is None:
            return "none"
        return str(
            drafter_file(self._held, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moa-bench-"))))
        )

    def _make_replicas(self, count: int, drafter: str, stack: ExitStack) -> list[Replica]:
        """Replicas that are not started; each names all others."""
        from moa_bench.harness.servers import running_server

        effort = self._effort
        serve = partial(
            running_server, self._model, level=self._experiment.result["level"], drafter=drafter,
            padding=effort.padding, cores=self._experiment.server_cores,
        )  # fmt: skip
        addresses = free_addresses(count)
        replicas = []
        for address in addresses:
            flags = ["--grace-seconds", f"{effort.grace_s:g}"]
            if others := [each for each in addresses if each != address]:
                flags += ["--peers", ",".join(others)]
            start = partial(_start, serve, flags)
            replicas.append(Replica(address, start, effort.grace_s + effort.end_s))
            stack.callback(replicas[-1].close)
        return replicas

    def _write_texts(self, address: str) -> tuple[list[tuple[int, ...]], float]:
        """The texts that are due, written once for all scenarios."""
        if self._texts is None:
            with self._progress.task("Texts", len(self._questions)) as task:
                self._texts = write_texts(address, self._questions, lambda: task.advance(1))
        return self._texts

    def _keep(self, name: str, played: dict[str, Any]) -> None:
        """Writes what is known so far: into the file of --json, or this scenario's table into the checkout."""
        experiment = self._experiment
        experiment.result["scenarios"][name] = played
        if experiment.writes_file:
            experiment.save()
            return
        everything, experiment.result["scenarios"] = experiment.result["scenarios"], {name: played}
        experiment.publish(tables.render(experiment.result, name), name=f"fleet-{name}", page=PAGE)
        experiment.result["scenarios"] = everything
        if name in PICTURES:
            self._draw(f"fleet-{name}", played)

    def _draw(self, name: str, played: dict[str, Any]) -> None:
        picture = self._experiment.picture_path(name)
        if picture is not None:
            from moa_bench.fleet.picture import draw

            title = f"{played['done']} {played['title']}, {self._effort.clients} clients, {self._files.target_id}"
            click.echo(draw(played["outcome"].timeline, title, picture))


def _start(serve: Any, flags: Sequence[str], port: int) -> Any:
    return serve(port=port, flags=flags)


def run_fleet(
    *,
    model: str,
    drafter: str,
    level: str,
    quick: bool,
    json_file: Path | None,
    pin: bool,
    scenarios: Sequence[str],
    effort: FleetEffort,
) -> None:
    """Plays scenarios and reports.

    Args:
        scenarios: their names, see `SCENARIOS`; none: all.

    Raises:
        DataError: an answer was lost or is another than undisturbed.
        MoaError: a replica does not end or start.
    """
    experiment = Experiment("fleet", quick=quick, json_file=json_file, pin=pin, effort=effort, level=level)
    run = FleetRun(experiment, model, drafter, effort)
    run.prepare()
    names = list(scenarios or SCENARIOS)
    with make_runner() as runner:
        outcomes = [run.play(name, runner) for name in names]
    if experiment.writes_file:
        experiment.publish("\n".join(tables.render(experiment.result, name) for name in names), page=PAGE)
    _check(outcomes)


def run_scaling(
    *, model: str, drafter: str, level: str, quick: bool, json_file: Path | None, effort: FleetEffort
) -> None:
    """Lets Ray scale a fleet and reports.

    Raises:
        DataError: an answer was lost or is another than undisturbed.
        MoaError: Ray or a replica does not start, or Ray does not follow the load.
    """
    experiment = Experiment("fleet-ray-scale", quick=quick, json_file=json_file, effort=effort, level=level)
    run = FleetRun(experiment, model, drafter, effort)
    run.prepare()
    with make_runner() as runner:
        _check([run.play_on_ray(runner)])


def _check(outcomes: Sequence[Outcome]) -> None:
    """Raises DataError if an answer was lost or is another one."""
    lost, different = (sum(getattr(each, what) for each in outcomes) for what in ("lost", "different"))
    if lost or different:
        failures = " ".join(dict.fromkeys(failure for each in outcomes for failure in each.failures))
        raise DataError(f"{lost} answers were lost and {different} differ: {failures}", hint="Look at the result.")


def run_throughput(*, model: str, level: str, quick: bool, json_file: Path | None, effort: ThroughputEffort) -> None:
    """Compares two replicas with one, and reports.

    Raises:
        MoaError: there are not two cores, or a replica fails.
    """
    cores = two_cores()
    experiment = Experiment("fleet-throughput", quick=quick, json_file=json_file, effort=effort, level=level)
    from moa_shared.models import load_tokenizer, resolve

    from moa_bench.harness.servers import running_server

    files = resolve(model, progress=make_progress())
    questions = make_questions(load_tokenizer(files), 2 * effort.users, effort.answer_tokens)
    with make_runner() as runner, ExitStack() as stack:
        serve = partial(running_server, model, level=level, drafter="none")
        addresses = [stack.enter_context(serve(cores=each)).address for each in cores]
        met = compare_throughput(runner, addresses, questions, effort)
    experiment.result |= {"target": files.target_id, "throughput": met}
    experiment.publish(tables.render_throughput(experiment.result), page=PAGE)
