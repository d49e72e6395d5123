"""`moa-bench hostile`: one honest client, and attackers one kind after the other on the same server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from moa_shared.errors import ConfigError, MoaError
from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.levels import INT8

from moa_bench.harness.child import Child, running
from moa_bench.harness.cores import on_cores
from moa_bench.harness.servers import running_server
from moa_bench.report.experiment import Experiment
from moa_bench.report.report import SECURITY
from moa_bench.suites.hostile import tables
from moa_bench.suites.hostile.attacks import ATTACKS, NEIGHBOUR, Attack
from moa_bench.suites.hostile.observed import Gaps, gaps_of, resident_mb, settle, watching_memory

MOST_GROWTH = 0.2  # of the p95 gap
MOST_MEMORY_MB = 32.0
# The default limit of an address. The attackers have another one than the honest client: the server listens on both.
LIMITS = ("--peer-requests-per-minute", "3000", "--host", "localhost")
HONEST, ATTACKER = "127.0.0.1", "[::1]"


@dataclass(frozen=True, slots=True)
class HostileEffort:
    """How much of an attack to measure.

    Args:
        answers: of the honest client before, during and after each attack.
        answer_tokens: of each.
        settle_seconds: between an attack and what is measured after it.
    """

    answers: int = 4
    answer_tokens: int = 64
    settle_seconds: float = 2.0


QUICK = HostileEffort(1, 8, 0.2)


@dataclass(frozen=True, slots=True)
class Endured:
    """What the honest client and the server's memory showed of one attack.

    Args:
        before, during, after: gaps between the honest client's tokens; `before` is next to an honest neighbour where
            the attack has answers written.
        memory_before_mb, memory_peak_mb, memory_after_mb: of the server.
    """

    attack: str
    beside_neighbour: bool
    before: Gaps
    during: Gaps
    after: Gaps
    memory_before_mb: float
    memory_peak_mb: float
    memory_after_mb: float

    @property
    def growth(self) -> float:
        """Growth of the p95 gap during the attack, as a share."""
        return self.during.p95_ms / self.before.p95_ms - 1.0 if self.before.p95_ms else 0.0

    @property
    def memory_growth_mb(self) -> float:
        return self.memory_peak_mb - self.memory_before_mb

    @property
    def is_harmless(self) -> bool:
        """Within the limits, and every answer whole."""
        exact = self.before.exact and self.during.exact and self.after.exact
        return exact and self.growth < MOST_GROWTH and self.memory_growth_mb < MOST_MEMORY_MB


def run_hostile(
    *,
    model: str,
    quick: bool,
    json_file: Path | None,
    pin: bool,
    level: str = INT8,
    attacks: Sequence[str] = (),
) -> None:
    """Measure and report.

    Args:
        attacks: only these; none: all.

    Raises:
        MoaError: an unknown attack, or a server or client that fails.
    """
    chosen = _find(attacks)
    effort = QUICK if quick else HostileEffort()
    experiment = Experiment("hostile", quick=quick, json_file=json_file, pin=pin, effort=effort, level=level)
    serve = partial(running_server, model, level=level, cores=experiment.server_cores, flags=LIMITS)
    with on_cores(experiment.own_cores), serve() as server:
        experiment.result |= _measure(model, server, effort, chosen, experiment.own_cores)
    experiment.publish(tables.render(experiment.result), page=SECURITY)


def _find(names: Sequence[str]) -> tuple[Attack, ...]:
    known = {attack.name: attack for attack in ATTACKS}
    for name in names:
        if name not in known:
            raise ConfigError(f"There is no attack {name!r}.", hint=f"Known: {'; '.join(known)}.")
    return tuple(known[name] for name in names) or ATTACKS


def _measure(
    model: str, server: Child, effort: HostileEffort, attacks: Sequence[Attack], cores: set[int] | None
) -> dict[str, Any]:
    from moa_shared.models import load_tokenizer, resolve

    from moa_bench.harness.prompts import QUESTIONS, chat_tokens
    from moa_bench.harness.split_client import SplitClient, client_settings, load_split_device

    progress = make_progress()
    files = resolve(model, progress=progress)
    prompt = chat_tokens(load_tokenizer(files), QUESTIONS[0])
    settings = AnswerSettings(max_tokens=effort.answer_tokens, ignore_end_of_text=True)
    endured = []
    with make_runner() as runner:
        address = _at(HONEST, server)
        device = load_split_device(runner, client_settings(server=address, model=model, drafter="none"))
        client = SplitClient(runner, address, device)
        try:
            expected = client.ask(prompt, settings).tokens

            def measure() -> Gaps:
                try:
                    return gaps_of([client.ask(prompt, settings) for _ in range(effort.answers)], expected)
                except MoaError as error:
                    return Gaps(0.0, 0.0, 0, exact=False, failure=error.message)

            with progress.task("Attacks", len(attacks)) as task:
                for attack in attacks:
                    endured.append(_endure(attack, server, effort, measure, cores))
                    task.advance(1)
        finally:
            client.close()
    return {"target": files.target_id, "endured": endured}


def _at(host: str, server: Child) -> str:
    return f"{host}:{server.address.rpartition(':')[2]}"


def _endure(
    attack: Attack, server: Child, effort: HostileEffort, measure: Callable[[], Gaps], cores: set[int] | None
) -> Endured:
    attacker = partial(running, "moa_bench.suites.hostile.attacker", cores=cores)
    memory = partial(resident_mb, server.process.pid)
    with attacker([_at(HONEST, server), NEIGHBOUR.name]) if attack.answers else nullcontext():
        before = measure()
    memory_before = memory()
    with watching_memory(memory) as peak, attacker([_at(ATTACKER, server), attack.name]):
        during = measure()
    settle(effort.settle_seconds)
    memory_after = memory()
    after = measure()
    return Endured(
        attack.name,
        attack.answers,
        before,
        during,
        after,
        round(memory_before, 1),
        round(peak.mb, 1),
        round(memory_after, 1),
    )
