"""One honest client, and attackers one kind after the other on the same server."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from functools import partial

import numpy as np
from moa_shared.errors import ConfigError, MoaError, UnavailableError
from moa_shared.models import load_tokenizer, resolve
from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.answers import TimedAnswer
from moa_bench.harness.child import Child, running, running_server
from moa_bench.harness.cores import on_cores
from moa_bench.harness.prompts import chat_tokens, questions_of
from moa_bench.harness.split_client import SplitClient, client_settings, load_split_device
from moa_bench.report.memory import MemoryKind, forget_peak, memory_mb
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.hostile import HostileEffort
from moa_bench.suites.hostile.attack_result import AttackResult, Gaps
from moa_bench.suites.hostile.attacks import ATTACKS, NEIGHBOUR, Attack

# The default limit of an address. The attackers have another one than the honest client: the server listens on both.
LIMITS = ("--peer-requests-per-minute", "3000", "--host", "localhost")
HONEST, ATTACKER = "127.0.0.1", "[::1]"


def measure(effort: HostileEffort, run: SuiteRun) -> Result:
    attacks = _find(effort.attacks)
    progress = make_progress()
    files = resolve(run.model, progress=progress)
    prompt = chat_tokens(load_tokenizer(files), questions_of()[0])
    settings = AnswerSettings(max_tokens=effort.answer_tokens, ignore_end_of_text=True)
    results = []
    with (
        on_cores(run.own_cores),
        running_server(run.model, level=run.level, cores=run.server_cores, flags=LIMITS) as server,
        make_runner() as runner,
    ):
        address = _at(HONEST, server)
        device = load_split_device(runner, client_settings(server=address, model=run.model, drafter="none"))
        with closing(SplitClient(runner, address, device)) as client:
            expected = client.ask(prompt, settings).tokens

            def measure_gaps() -> Gaps:
                try:
                    return gaps_of([client.ask(prompt, settings) for _ in range(effort.answers)], expected)
                except MoaError as error:
                    return Gaps(0.0, 0.0, 0, exact=False, failure=error.message)

            with progress.task("Attacks", len(attacks)) as task:
                for attack in attacks:
                    results.append(_attack(attack, server, effort, measure_gaps, run.own_cores))
                    task.advance(1)
    return {"target": files.target_id, "attacks": results}


def _find(names: Sequence[str]) -> tuple[Attack, ...]:
    known = {attack.name: attack for attack in ATTACKS}
    for name in names:
        if name not in known:
            raise ConfigError(f"There is no attack {name!r}.", hint=f"Known: {'; '.join(known)}.")
    return tuple(known[name] for name in names) or ATTACKS


def _at(host: str, server: Child) -> str:
    return f"{host}:{server.address.rpartition(':')[2]}"


def _attack(
    attack: Attack, server: Child, effort: HostileEffort, measure: Callable[[], Gaps], cores: set[int] | None
) -> AttackResult:
    attacker = partial(running, "moa_bench.suites.hostile.attacks", cores=cores)
    process = server.process.pid
    with attacker([_at(HONEST, server), NEIGHBOUR.name]) if attack.answers else nullcontext():
        before = measure()
    memory_before = _memory_mb(process)
    forget_peak(process)
    with attacker([_at(ATTACKER, server), attack.name]):
        during = measure()
        peak = _memory_mb(process, MemoryKind.PEAK)
    time.sleep(effort.settle_seconds)  # the server ends what the attack has left open
    memory_after = _memory_mb(process)
    return AttackResult(attack.name, attack.answers, before, during, measure(), memory_before, peak, memory_after)


def gaps_of(answers: Sequence[TimedAnswer], expected: Sequence[int]) -> Gaps:
    """Gaps of answers that should all read `expected`."""
    gaps_ms = np.concatenate([1e3 * np.diff(answer.arrivals_s) for answer in answers])
    return Gaps(
        round(float(np.percentile(gaps_ms, 95)), 1),
        round(float(gaps_ms.max()), 1),
        len(answers),
        all(answer.tokens == tuple(expected) for answer in answers),
    )


def _memory_mb(process: int, kind: MemoryKind = MemoryKind.RESIDENT) -> float:
    found = memory_mb(process, kind)
    if found is None:
        raise UnavailableError(f"The memory of process {process} cannot be read.", hint="Measure on Linux.")
    return found
