"""What a step of the server costs besides the target's forward, with one session and with many.

Users ask a server that notes its forwards (`timed_server`). A step lasts from the beginning of one forward to the
beginning of the next. What the inference thread computed in the forward, and in the drafter's memory encoder, is the
models'; all the rest is overhead: choosing tokens, verdicts, coding rows, planning, and frames where the event loop
shares the target's core.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

from moa_shared.errors import DataError
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.oracle import Script
from moa_bench.harness.prompts import PASSAGE
from moa_bench.harness.servers import running_server
from moa_bench.harness.split_client import describe
from moa_bench.harness.stage import Stage
from moa_bench.report.spread import Spread
from moa_bench.suite import Run
from moa_bench.suites.micro.suite import OverheadEffort
from moa_bench.suites.micro.timed_server import TimedForward, read_forwards
from moa_bench.users.askers import OracleAsker, PlainAsker
from moa_bench.users.figures import UserAnswer
from moa_bench.users.questions import Lengths, make_questions
from moa_bench.users.users import Asker, run_users

ACCEPTANCE = 0.8  # of the oracle's drafts: that of a good drafter on easy text, which brings the most frames a step
DRAFT_MS = 5.0  # of its draft step, as in the other measurements
PLAIN, DRAFTS = "plain streaming", "split, with drafts"


@dataclass(frozen=True, slots=True)
class Overhead:
    """What steps cost in which so many sessions took part.

    Args:
        step_ms: from one forward to the next.
        forward_ms: of it, what the inference thread computed in the forward; `encoder_ms`: in the memory encoder, on
            average, since many steps have none.
        share: of each step, what is neither.
        serial_share: the same of the CPU time that no other core can take over: of the inference thread, and of the
            loop while it commits and plans between two forwards.
        cpu_share: the same of all of the server's CPU time, frames included: the overhead where it has one core, and
            does not count what other processes took.
        rows: of a forward, on average.
    """

    way: str
    sessions: int
    step_ms: Spread
    forward_ms: Spread
    encoder_ms: float
    share: Spread
    serial_share: float
    cpu_share: float
    rows: float


def overhead_of(way: str, sessions: int, rounds: Sequence[Sequence[TimedForward]]) -> Overhead:
    """The overhead of steps that followed one another.

    Args:
        rounds: forwards in a row, each time that all asked.

    Raises:
        DataError: no two of these forwards in a row were of all sessions.
    """
    pairs = (pair for forwards in rounds for pair in pairwise(forwards))
    steps = [pair for pair in pairs if all(each.sessions == sessions for each in pair)]
    if not steps:
        raise DataError(f"No two forwards in a row were of {sessions} sessions.", hint="Measure longer answers.")
    took = [later.began_s - earlier.began_s for earlier, later in steps]
    forward = [earlier.cpu_s for earlier, _ in steps]
    encoder = [later.encoder_cpu_s - earlier.encoder_cpu_s for earlier, later in steps]
    computed = [of_target + of_drafter for of_target, of_drafter in zip(forward, encoder, strict=True)]
    serial_cpu = sum(later.serial_cpu_s - earlier.serial_cpu_s for earlier, later in steps)
    all_cpu = sum(later.process_cpu_s - earlier.process_cpu_s for earlier, later in steps)
    return Overhead(
        way,
        sessions,
        Spread.of([1e3 * seconds for seconds in took]),
        Spread.of([1e3 * seconds for seconds in forward]),
        round(1e3 * sum(encoder) / len(encoder), 2),
        Spread.of([1 - part / whole for part, whole in zip(computed, took, strict=True)]),
        round(1 - sum(computed) / serial_cpu, 4),
        round(1 - sum(computed) / all_cpu, 4),
        round(sum(earlier.rows for earlier, _ in steps) / len(steps), 1),
    )


def steady_window(answers: Sequence[UserAnswer]) -> tuple[float, float]:
    """When all answers were under way: from the last first arrival to the first last one, on the answers' clock."""
    return max(answer.arrivals[0][0] for answer in answers), min(answer.arrivals[-1][0] for answer in answers)


def measure_overhead(stage: Stage, effort: OverheadEffort, run: Run) -> list[Overhead]:
    """All numbers of sessions, streaming plainly and with drafts, on a server of its own."""
    windows: list[tuple[str, int, tuple[float, float]]] = []
    with tempfile.TemporaryDirectory(prefix="moa-bench-") as folder:
        times = Path(folder) / "times"
        serve = partial(running_server, run.model, level=run.level, drafter=stage.path, cores=run.server_cores)
        with serve(times=times) as server:
            for sessions in effort.sessions:
                for _ in range(effort.rounds):
                    windows += stage.runner.run(_ask_all(stage, server.address, sessions, effort))
        forwards = read_forwards(times)
    found = []
    for way in (PLAIN, DRAFTS):
        for sessions in effort.sessions:
            own = [window for of_way, count, window in windows if (of_way, count) == (way, sessions)]
            rounds = [[each for each in forwards if begin <= each.began_s < end] for begin, end in own]
            found.append(overhead_of(way, sessions, rounds))
    return found


async def _ask_all(
    stage: Stage, address: str, sessions: int, effort: OverheadEffort
) -> list[tuple[str, int, tuple[float, float]]]:
    """All users at once, plainly and then with drafts of the same texts; when their answers were under way."""
    passage = stage.tokenizer.encode(PASSAGE)
    lengths = Lengths(effort.prompt_tokens, effort.prompt_tokens)
    questions = make_questions(passage, lengths, sessions, 1, seed=0)
    settings = AnswerSettings(max_tokens=effort.answer_tokens, ignore_end_of_text=True)
    described = await describe(address)
    plain = await _run([PlainAsker(address, settings) for _ in range(sessions)], questions)
    texts = {answer.user: tuple(answer.tokens) for answer in plain}
    oracles = [
        OracleAsker(
            address,
            described,
            settings,
            [Script((*questions[user][0], *texts[user]), ACCEPTANCE, user, stage.vocab_size)],
            DRAFT_MS,
        )
        for user in range(sessions)
    ]
    split = await _run(oracles, questions)
    return [(PLAIN, sessions, steady_window(plain)), (DRAFTS, sessions, steady_window(split))]


async def _run(askers: Sequence[Asker], questions: Sequence[Sequence[Sequence[int]]]) -> list[UserAnswer]:
    async with AsyncExitStack() as stack:
        for asker in askers:
            stack.push_async_callback(asker.close)
        answers, _ = await run_users(askers, questions, None)
    return answers
