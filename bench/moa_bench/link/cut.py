"""`moa-bench cut`: answers whose link is cut or reset, or whose server is killed, at random times.

State: one server that can be killed and started again on its port, one emulated link, one client. Each incident has an
answer of its own, whose text is held against that of an undisturbed one.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moa_shared.answer import AnswerSettings
from moa_shared.progress import make_progress

from moa_bench.answers import PlainClient, TimedAnswer
from moa_bench.child import Child
from moa_bench.cores import on_cores, split_cores
from moa_bench.facts import gather_facts
from moa_bench.link import tables
from moa_bench.link.emulated import RunningLink, find_links, linked
from moa_bench.link.incidents import Incident, Kind, Planned, judge_incident, plan_incidents
from moa_bench.link.oracle import Script
from moa_bench.report import checkout_root, publish

if TYPE_CHECKING:
    from moa_bench.split_client import SplitClient

# Of a client in rounds, from the last frame: above a step, the longest link's round trip and its spread together.
SILENCE_S = 1.0
PERSIST_S = 60.0  # above a restart of the server and gRPC's longest wait to reconnect
ORACLE_ACCEPTANCE = 0.65
ORACLE_DRAFT_MS = 5.0


@dataclass(frozen=True, slots=True)
class CutEffort:
    """How many of each kind, and how long the answers are."""

    cuts: int = 30
    resets: int = 10
    kills: int = 10
    prompts: int = 3
    answer_tokens: int = 64
    seed: int = 0


QUICK = CutEffort(1, 1, 1, 1, 24)


class RestartableServer:
    """A server that can die and come back on its port.

    Args:
        start: starts one on a port (0: any).
    """

    def __init__(self, start: Callable[[int], AbstractContextManager[Child]]) -> None:
        self._start = start
        self._stack = ExitStack()
        self._child = self._stack.enter_context(start(0))

    @property
    def address(self) -> str:
        return self._child.address

    def kill_and_restart(self) -> None:
        """Returns when the new one is ready."""
        port = int(self.address.rpartition(":")[2])
        self._child.kill()
        self._stack.close()
        self._child = self._stack.enter_context(self._start(port))

    def close(self) -> None:
        self._stack.close()


def run_cut(
    *, model: str, quick: bool, json_file: Path | None, pin: bool, link: str, cuts: int | None, kills: int | None
) -> None:
    """Measure and report.

    Args:
        link: name of an emulated link.
        cuts, kills: how many; None: as `CutEffort` says.

    Raises:
        MoaError: an unknown link, or a server, link or client that fails for good.
    """
    effort = _effort(quick, cuts, kills)
    chosen = find_links((link,))[0]
    facts = gather_facts(checkout_root())
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is loaded; counts for the drafter's thread too
    server_cores, own_cores = split_cores(pin)
    import torch
    from moa_shared.models import load_tokenizer, resolve

    from moa_bench.drafters import drafter_file, find_drafter
    from moa_bench.link.network import SURE_QUESTIONS
    from moa_bench.prompts import chat_tokens
    from moa_bench.servers import running_server

    torch.set_num_threads(1)
    progress = make_progress()
    files = resolve(model, progress=progress)
    tokenizer = load_tokenizer(files)
    prompts = [chat_tokens(tokenizer, question) for question in SURE_QUESTIONS[: effort.prompts]]
    with on_cores(own_cores), asyncio.Runner() as runner, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moa-bench-")))
        drafter = str(drafter_file(find_drafter(files), files, folder))
        server = RestartableServer(
            lambda port: running_server(model, dtype="float32", drafter=drafter, cores=server_cores, port=port)
        )
        stack.callback(server.close)
        running = stack.enter_context(linked(chosen, server.address, seed=effort.seed, cores=own_cores))
        connect = _connector(runner, server.address, running.address, drafter)
        plan = plan_incidents(effort.cuts, effort.resets, effort.kills, len(prompts), effort.seed)
        with progress.task("Answers that are disturbed", len(plan) + len(prompts)) as task:
            stage = _Stage(running, server, connect, prompts, effort.answer_tokens, int(files.config["vocab_size"]))
            whole = []
            for number in range(len(prompts)):
                whole.append(stage.undisturbed(number))
                task.advance(1)
            incidents = []
            for planned in plan:
                incidents.append(stage.disturbed(planned, whole[planned.prompt]))
                task.advance(1)
    result = {
        "suite": "cut",
        "quick": quick,
        "pinned": pin,
        "machine": facts,
        "target": files.target_id,
        "link": chosen.name,
        "effort": effort,
        "incidents": [incident for incident in incidents if incident is not None],
        "missed": sum(incident is None for incident in incidents),
    }
    publish("cut", result, tables.render_cut(result), quick=quick, json_file=json_file)


def _effort(quick: bool, cuts: int | None, kills: int | None) -> CutEffort:
    base = QUICK if quick else CutEffort()
    return CutEffort(
        base.cuts if cuts is None else cuts,
        base.resets,
        base.kills if kills is None else kills,
        base.prompts,
        base.answer_tokens,
        base.seed,
    )


def _connector(runner: asyncio.Runner, server: str, through: str, drafter: str) -> Callable[[Script], SplitClient]:
    """Makes clients whose oracle plays a script; the device is loaded once. Memory comes as for the drafter."""
    from moa_bench.link.ways import best_length, with_oracle
    from moa_bench.split_client import SplitClient, client_settings, load_split_device

    device = load_split_device(runner, client_settings(server=server, drafter=drafter))
    length = best_length(ORACLE_ACCEPTANCE, 0.0, ORACLE_DRAFT_MS)

    def connect(script: Script) -> SplitClient:
        playing = with_oracle(device, script, ORACLE_DRAFT_MS, length)
        return SplitClient(runner, through, playing, persist_s=PERSIST_S, silence_s=SILENCE_S)

    return connect


class _Stage:
    """Where answers meet incidents."""

    def __init__(
        self,
        link: RunningLink,
        server: RestartableServer,
        connect: Callable[[Script], SplitClient],
        prompts: Sequence[Sequence[int]],
        answer_tokens: int,
        vocab_size: int,
    ) -> None:
        self._link = link
        self._server = server
        self._connect = connect
        self._prompts = prompts
        self._settings = AnswerSettings(max_tokens=answer_tokens, ignore_end_of_text=True)
        self._vocab_size = vocab_size
        self._struck_s = self._healed_s = 0.0

    def undisturbed(self, prompt: int) -> TimedAnswer:
        """The whole answer, by plain streaming, and then once more with the oracle, whose time counts."""
        client = PlainClient(self._link.address)
        try:
            text = client.ask(self._prompts[prompt], self._settings)
        finally:
            client.close()
        answer, _ = self._answer(prompt, text.tokens)
        return answer

    def disturbed(self, planned: Planned, whole: TimedAnswer) -> Incident | None:
        """One answer, and what happened to it."""
        began = time.perf_counter()
        strike = threading.Timer(planned.at * whole.arrivals_s[-1], self._strike, (planned,))
        strike.start()
        answer, attempts = self._answer(planned.prompt, whole.tokens)
        strike.join()
        return judge_incident(
            planned.kind,
            self._struck_s,
            self._healed_s,
            [began, *(began + arrival for arrival in answer.arrivals_s)],
            attempts=attempts,
            equal=answer.tokens == whole.tokens,
        )

    def _answer(self, prompt: int, text: Sequence[int]) -> tuple[TimedAnswer, int]:
        tokens = self._prompts[prompt]
        client = self._connect(Script((*tokens, *text), ORACLE_ACCEPTANCE, prompt, self._vocab_size))
        try:
            return client.ask(tokens, self._settings), client.attempts
        finally:
            client.close()

    def _strike(self, planned: Planned) -> None:
        self._struck_s = time.perf_counter()
        if planned.kind is Kind.CUT:
            self._link.cut(planned.seconds)
            self._healed_s = time.perf_counter() + planned.seconds
            time.sleep(planned.seconds)  # the next answer must not begin in this one's cut
        elif planned.kind is Kind.RESET:
            self._link.reset()
            self._healed_s = time.perf_counter()
        else:
            self._server.kill_and_restart()
            self._healed_s = time.perf_counter()
