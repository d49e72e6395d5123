"""`moa-bench cut`: answers whose link is cut or reset, or whose server is killed, at random times.

As many incidents as an answer's time allows, next to undisturbed answers. State: one server that can be killed and
replaced, one emulated link, one client.
"""

import math
import random
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from moa_client.settings import ClientSettings
from moa_shared.errors import UnavailableError
from moa_shared.models import load_tokenizer, resolve
from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.sampling.settings import INT8

from moa_bench.harness.child import Child, running_server
from moa_bench.harness.links import RunningLink, find_links, linked
from moa_bench.harness.oracle import Script, with_oracle
from moa_bench.harness.questions import SURE_QUESTIONS, chat_tokens, questions_of
from moa_bench.harness.split_client import Moment, PlainClient, SplitClient, load_split_device
from moa_bench.harness.stage import find_drafter
from moa_bench.machine import on_cores
from moa_bench.registry import CutEffort
from moa_bench.report import Spread, facts_line, table
from moa_bench.suite import Result, SuiteRun

# Without link or server: shorter than a client's timer (a hand-over) to much longer (a lift), as many in each octave.
SHORTEST_S = 0.06
LONGEST_S = 3.0
# From the answer's begin, or from when the incident before was over: the prompt is being read, text comes, is verified.
# Longer where an answer takes longer, so that one is over before the next begins.
LATEST_S = 1.5


class IncidentKind(StrEnum):
    CUT = "cut"  # everything sent is lost for a time
    RESET = "reset"  # every connection ends with a reset
    KILL = "kill"  # the server dies, and another one is started at its address


@dataclass(frozen=True, slots=True)
class Planned:
    kind: IncidentKind
    after_s: float  # from the answer's begin or the end of the incident before
    seconds: float  # how long a cut lasts


@dataclass(frozen=True, slots=True)
class InjectedIncident:
    """An incident that happened, until link and server were there again; times are seconds since the question."""

    kind: IncidentKind
    at_s: float
    healed_s: float
    next_s: float = math.inf  # when the next one began; infinite: there was none


@dataclass(frozen=True, slots=True)
class Incident:
    """What an answer shows of an incident.

    Args:
        stall_ms: the longest wait for new text that lasted into the incident or began in it; None: all of the text
            was already on the screen.
        resume_ms: from when link and server were there again to the next verdict; None: the next incident came first,
            or nothing was left to decide.
        whole: whether the answer's final text is that of an undisturbed one, and the screen showed it, token for token.
    """

    kind: IncidentKind
    seconds: float  # until the link or the server was there again
    stall_ms: float | None
    resume_ms: float | None
    alone: bool  # whether standalone text was written from the incident until then
    whole: bool


def plan_incidents(cuts: int, resets: int, kills: int, seed: int, answer_s: float = 0.0) -> list[Planned]:
    """That many of each kind in random order, at random times, for random lengths.

    An undisturbed answer takes `answer_s`.
    """
    draw = random.Random(seed)
    kinds = [IncidentKind.CUT] * cuts + [IncidentKind.RESET] * resets + [IncidentKind.KILL] * kills
    draw.shuffle(kinds)
    plan = []
    for kind in kinds:
        after_s, seconds = draw.uniform(0.0, max(LATEST_S, answer_s)), SHORTEST_S
        seconds *= (LONGEST_S / SHORTEST_S) ** draw.random()
        plan.append(Planned(kind, after_s, seconds if kind is IncidentKind.CUT else 0.0))
    return plan


def judge_incident(
    struck: InjectedIncident, moments: Sequence[Moment], verdicts_s: Sequence[float], *, answer_tokens: int, whole: bool
) -> Incident | None:
    """What a screen says about an incident, by its moments and when verdicts came; None if all of the answer had been
    decided before it.
    """
    if not any(at_s > struck.at_s for at_s in verdicts_s):
        return None
    resumed_s = next((at_s for at_s in verdicts_s if at_s > struck.healed_s), math.inf)
    over_s = min(resumed_s, struck.next_s)
    waits = []
    since_s, length = 0.0, 0
    for moment in moments:
        if moment.at_s > struck.at_s and since_s < over_s and length < answer_tokens and moment.is_new:
            waits.append(min(moment.at_s, struck.next_s) - since_s)
        since_s, length = moment.at_s, moment.length
    return Incident(
        struck.kind,
        round(struck.healed_s - struck.at_s, 3),
        round(max(waits) * 1e3, 1) if waits else None,
        round((resumed_s - struck.healed_s) * 1e3, 1) if resumed_s < struck.next_s else None,
        any(moment.length > moment.committed for moment in moments if struck.at_s < moment.at_s <= over_s),
        whole,
    )


def render(result: Mapping[str, Any]) -> str:
    incidents, effort = result["incidents"], result["effort"]
    note = (
        f"{result['answers']} answers of {effort.answer_tokens} tokens to {effort.asked} questions, greedy, "
        f"{result['level']}, over {result['link']}. Median (quartiles).\n"
    )
    head = ["incident", "met", "texts whole", "wrote standalone text", "away, ms", "stall, ms", "95 %", "longest"]
    rows = []
    for kind in dict.fromkeys(each.kind for each in incidents):
        met = [each for each in incidents if each.kind is kind]
        stalls_ms = [each.stall_ms for each in met if each.stall_ms is not None]
        resumes_ms = [each.resume_ms for each in met if each.resume_ms is not None]
        counts = len(met), sum(each.whole for each in met), sum(each.alone for each in met)
        away = f"{Spread.of([1e3 * each.seconds for each in met]):0}"
        rows.append([kind.value, *counts, away, *_spread(stalls_ms), *_spread(resumes_ms)])
    return "\n".join([facts_line(result), note, table([*head, "to resume, ms", "95 %", "longest"], rows)])


def _spread(values: Sequence[float]) -> tuple[str, str, str]:
    """Median with quartiles, the value below which 95 % are, and the most."""
    if not values:
        return "none", "", ""
    most = sorted(values)
    return f"{Spread.of(values):0}", f"{most[min(len(most) - 1, int(0.95 * len(most)))]:.0f}", f"{most[-1]:.0f}"


AGAIN_S = 0.5  # after which an answer meets what another one missed: the server has heard its question
SILENCE_S = 60.0  # how long a client that cannot write standalone text waits for a server: longer than a restart
ORACLE_ACCEPTANCE = 0.65
ORACLE_DRAFT_MS = 25.0  # a slow device: its standalone text does not end before a cut does


LISTENING_S = 10.0  # at most, from a server's start until a link leads to it again


def wait_for_listener(address: str) -> None:
    """Returns when "host:port" takes connections: a link refuses them for a moment longer than its server does."""
    host, _, port = address.rpartition(":")
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < LISTENING_S:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        time.sleep(0.005)
    raise UnavailableError(f"Nothing listens at {address}.", hint="Measure again.")


class MortalServer:
    """A server that can be killed, and replaced at its address by one that knows nothing of its sessions."""

    def __init__(self, start: Callable[[int], AbstractContextManager[Child]]) -> None:
        self._start = start
        self.was_killed = False
        self.stack = ExitStack()
        self.child = self.stack.enter_context(start(0))

    def kill_and_replace(self) -> None:
        self.was_killed = True
        self.child.kill()
        self.stack.close()
        self.child = self.stack.enter_context(self._start(int(self.child.address.rpartition(":")[2])))


def measure(effort: CutEffort, run: SuiteRun) -> Result:
    """Answers until all incidents were met."""
    chosen = find_links((effort.link,))[0]
    progress = make_progress()
    files = resolve(run.model, progress=progress)
    tokenizer = load_tokenizer(files)
    asked = questions_of(run.questions) if run.level == INT8 else SURE_QUESTIONS
    prompts = [chat_tokens(tokenizer, question) for question in asked[: effort.asked]]
    with on_cores(run.own_cores), make_runner() as runner, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moa-bench-")))
        drafter = find_drafter(files).file(folder)
        server = MortalServer(
            lambda port: running_server(run.model, level=run.level, drafter=drafter, port=port, cores=run.server_cores)
        )
        stack.callback(server.stack.close)
        address = server.child.address
        running = stack.enter_context(linked(chosen, address, seed=effort.seed, cores=run.own_cores))
        device = load_split_device(runner, ClientSettings(server=address, model=run.model, drafter=drafter))

        def connect(script: Script) -> SplitClient:
            """A client with an oracle that plays a script; memory comes as for the real drafter."""
            playing = with_oracle(device, script, ORACLE_DRAFT_MS)
            return SplitClient(runner, running.address, playing, silence_s=SILENCE_S)

        settings = AnswerSettings(max_tokens=effort.answer_tokens, ignore_end_of_text=True)
        stage = _Stage(running, server, connect, prompts, settings, int(files.config["vocab_size"]))
        incidents: list[Incident] = []
        answers = 0
        with progress.task("Incidents", effort.cuts + effort.resets + effort.kills) as task:
            began_s = time.perf_counter()
            whole = [stage.undisturbed(number) for number in range(len(prompts))]
            answer_s = (time.perf_counter() - began_s) / len(prompts)
            plan = deque(plan_incidents(effort.cuts, effort.resets, effort.kills, effort.seed, answer_s))
            while plan:
                left = len(plan)
                number = answers % len(prompts)
                incidents += stage.disturbed(plan, number, whole[number])
                answers += 1
                task.advance(left - len(plan))
    return {
        "target": files.target_id,
        "link": chosen.name,
        "incidents": incidents,
        "answers": answers,
    }


Judge = Callable[[InjectedIncident], Incident | None]


@dataclass(frozen=True, slots=True)
class _Stage:
    """A server, a link and a client, where answers meet incidents."""

    link: RunningLink
    server: MortalServer
    connect: Callable[[Script], SplitClient]
    prompts: Sequence[Sequence[int]]
    settings: AnswerSettings
    vocab_size: int

    def undisturbed(self, prompt: int) -> Sequence[int]:
        with closing(PlainClient(self.link.address)) as client:
            return client.ask(self.prompts[prompt], self.settings).tokens

    def disturbed(self, plan: deque[Planned], prompt: int, text: Sequence[int]) -> list[Incident]:
        self.server.was_killed = False
        whole, seed = (*self.prompts[prompt], *text), prompt + len(plan)
        client = self.connect(Script(whole, ORACLE_ACCEPTANCE, seed, self.vocab_size, is_sure=True))
        over = threading.Event()
        struck: list[InjectedIncident] = []
        striking = threading.Thread(target=self._strike_on, args=(plan, over, struck))
        striking.start()
        try:
            judge = self._ask(client, prompt, text)
        finally:
            over.set()
            striking.join()
            client.close()
        met = [judge(one) for one in _since(client.began_s, struck)]
        missed = [one for one, incident in zip(struck, met, strict=True) if incident is None]
        plan.extend(Planned(one.kind, AGAIN_S, one.healed_s - one.at_s) for one in missed)  # with another answer
        return [incident for incident in met if incident is not None]

    def _ask(self, client: SplitClient, prompt: int, text: Sequence[int]) -> Judge:
        try:
            answer, screen = client.ask(self.prompts[prompt], self.settings), client.screen
        except UnavailableError:  # the server was gone before it had heard the question
            if not self.server.was_killed:
                raise
            return lambda struck: None
        whole = answer.tokens == tuple(text) and screen.fits(answer.tokens)
        return lambda struck: judge_incident(
            struck, screen.moments, screen.decided_s, answer_tokens=len(answer.tokens), whole=whole
        )

    def _strike_on(self, plan: deque[Planned], over: threading.Event, struck: list[InjectedIncident]) -> None:
        """Strikes until the answer or the plan is over; a wait that outlasts an answer continues in the next."""
        while plan:
            planned, began_s = plan.popleft(), time.perf_counter()
            if over.wait(planned.after_s):
                waited_s = time.perf_counter() - began_s
                plan.appendleft(replace(planned, after_s=max(0.0, planned.after_s - waited_s)))
                return
            at_s = time.perf_counter()
            if planned.kind is IncidentKind.CUT:
                self.link.cut(planned.seconds)
                time.sleep(planned.seconds)
            elif planned.kind is IncidentKind.RESET:
                self.link.reset()
            else:
                self.server.kill_and_replace()
                wait_for_listener(self.link.address)
            struck.append(InjectedIncident(planned.kind, at_s, time.perf_counter()))


def _since(began_s: float, struck: Sequence[InjectedIncident]) -> list[InjectedIncident]:
    """The same incidents on an answer's clock, each with the begin of the next one."""
    nexts = [*(one.at_s for one in struck[1:]), math.inf][: len(struck)]
    return [
        InjectedIncident(one.kind, one.at_s - began_s, one.healed_s - began_s, next_s - began_s)
        for one, next_s in zip(struck, nexts, strict=True)
    ]
