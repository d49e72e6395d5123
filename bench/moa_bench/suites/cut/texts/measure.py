"""Whole answers through split inference over a link that is cut, against the server's own.

State: one server, one emulated link, one client. Every second answer is sampled as chats do, and every second pair has
penalties; each has a seed of its own. A thread cuts and resets the link at random times. A text that differs is kept in
the result.
"""

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from moa_client.conversation.answer_options import CHAT_DEFAULTS, AnswerOptions
from moa_shared.models import load_tokenizer, resolve
from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.settings import Sampling

from moa_bench.harness.answers import PlainClient, common_tokens
from moa_bench.harness.child import running_server
from moa_bench.harness.cores import on_cores
from moa_bench.harness.links import RunningLink, find_links, linked
from moa_bench.harness.prompts import chat_tokens, questions_of
from moa_bench.harness.split_client import SplitClient, client_settings, load_split_device
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.cut.texts import TextsEffort

SILENCE_S = 60.0
PENALTIES: dict[str, Any] = {
    "min_p": 0.05,
    "repeat_penalty": 1.1,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.2,
    "logit_bias": ((28, -5.0), (30, 1.0)),  # of the default model: a comma and a full stop
}
GAP_S, CUT_S = (0.3, 2.0), (0.2, 1.5)  # between two cuts, and how long one lasts; uniform
RESET_SHARE = 0.15  # of the cuts are resets of the connection


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that differs from the server's own."""

    question: int
    seed: int
    temperature: float
    agreed: int  # tokens before the first that differs


@dataclass(slots=True)
class Incidents:
    """What has happened to the link."""

    cuts: int = 0
    resets: int = 0


def measure(effort: TextsEffort, run: SuiteRun) -> Result:
    chosen = find_links((effort.link,))[0]
    progress = make_progress()
    tokenizer = load_tokenizer(resolve(run.model, progress=progress))
    prompts = [chat_tokens(tokenizer, text) for text in questions_of(run.questions)]
    differences: list[Difference] = []
    written = standalone = 0
    with on_cores(run.own_cores), make_runner() as runner, ExitStack() as stack:
        server = stack.enter_context(running_server(run.model, level=run.level, cores=run.server_cores))
        running = stack.enter_context(linked(chosen, server.address, cores=run.own_cores))
        plain = stack.enter_context(closing(PlainClient(server.address)))
        program = client_settings(server=server.address, model=run.model, drafter=effort.drafter)
        device = load_split_device(runner, program)
        split = stack.enter_context(closing(SplitClient(runner, running.address, device, silence_s=SILENCE_S)))
        with cutting(running) as incidents, progress.task("Answers", effort.answers) as task:
            for number in range(effort.answers):
                question = number // 2 % len(prompts)
                settings = answer_settings(number, effort.tokens)
                expected = plain.ask(prompts[question], settings).tokens
                got = split.ask(prompts[question], settings).tokens
                written += len(got)
                standalone += split.figures.provisional
                if got != expected:
                    differences.append(_difference(question, settings.sampling, got, expected))
                task.advance(1)
    return {
        "link": chosen.name,
        "drafter": effort.drafter,
        "answers": effort.answers,
        "tokens": written,
        "standalone": standalone,
        "cuts": incidents.cuts,
        "resets": incidents.resets,
        "differences": differences,
    }


def answer_settings(number: int, tokens: int) -> AnswerSettings:
    """Settings of the answer of that number, each with its own seed: greedy, and as chats sample, in turn.

    Every other pair has penalties and a bias.
    """
    greedy, sampled = AnswerOptions(temperature=0.0), AnswerOptions()
    options = sampled if number % 2 else greedy
    if number % 4 >= 2:
        options = replace(options, **PENALTIES)
    return replace(options, max_tokens=tokens).decided(CHAT_DEFAULTS, seed=number).settings()


@contextmanager
def cutting(link: RunningLink, seed: int = 0) -> Iterator[Incidents]:
    """Cuts and resets a link at random times until the block ends; loopback is left as it is."""
    draw, over, incidents = random.Random(seed), threading.Event(), Incidents()

    def strike_on() -> None:
        while not over.wait(draw.uniform(*GAP_S)):
            if draw.random() < RESET_SHARE:
                link.reset()
                incidents.resets += 1
            else:
                seconds = draw.uniform(*CUT_S)
                link.cut(seconds)
                incidents.cuts += 1
                over.wait(seconds)

    thread = threading.Thread(target=strike_on)
    if link.control is not None:
        thread.start()
    try:
        yield incidents
    finally:
        over.set()
        if link.control is not None:
            thread.join()


def _difference(question: int, sampling: Sampling, got: Sequence[int], expected: Sequence[int]) -> Difference:
    return Difference(question, sampling.seed, sampling.temperature, common_tokens(got, expected))
