"""Whole answers through split inference over a link that is cut, against the server's own.

State: one server, one emulated link, one client. Every second answer is sampled as chats do, and every second pair has
penalties; each has a seed of its own. A thread cuts and resets the link at random times. A text that differs is kept in
the result.
"""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from moa_client.conversation.answer_options import AnswerOptions
from moa_shared.programs.progress import make_progress
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.defaults import CHAT_DEFAULTS

from moa_bench.harness.answers import PlainClient, common_tokens
from moa_bench.harness.links import RunningLink, find_links, linked
from moa_bench.harness.prompts import chat_tokens, questions_of
from moa_bench.harness.split_client import SplitClient
from moa_bench.harness.stage import staged
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


def measure(effort: TextsEffort, run: SuiteRun) -> Result:
    chosen = find_links((effort.link,))[0]
    differences: list[Difference] = []
    written = standalone = 0
    with ExitStack() as stack:
        stage = stack.enter_context(staged(run.model, run.level, run.server_cores, run.own_cores, effort.drafter))
        prompts = [chat_tokens(stage.tokenizer, text) for text in questions_of(run.questions)]
        running = stack.enter_context(linked(chosen, stage.address, cores=run.own_cores))
        plain = stack.enter_context(closing(PlainClient(stage.address)))
        client = SplitClient(stage.runner, running.address, stage.device, silence_s=SILENCE_S)
        split = stack.enter_context(closing(client))
        with cutting(running) as struck, make_progress().task("Answers", effort.answers) as task:
            for number in range(effort.answers):
                question = number // 2 % len(prompts)
                settings = answer_settings(number, effort.tokens)
                expected = plain.ask(prompts[question], settings).tokens
                got = split.ask(prompts[question], settings).tokens
                written += len(got)
                standalone += split.figures.provisional
                if got != expected:
                    agreed, sampling = common_tokens(got, expected), settings.sampling
                    differences.append(Difference(question, sampling.seed, sampling.temperature, agreed))
                task.advance(1)
    return {
        "target": stage.files.target_id,
        "link": chosen.name,
        "drafter": effort.drafter,
        "answers": effort.answers,
        "tokens": written,
        "standalone": standalone,
        "cuts": struck["cuts"],
        "resets": struck["resets"],
        "differences": differences,
    }


def answer_settings(number: int, tokens: int) -> AnswerSettings:
    """Settings of the answer of that number, each with its own seed: greedy, and as chats sample, in turn.

    Every other pair has penalties and a bias.
    """
    options = AnswerOptions() if number % 2 else AnswerOptions(temperature=0.0)
    if number % 4 >= 2:
        options = replace(options, **PENALTIES)
    return replace(options, max_tokens=tokens).decided(CHAT_DEFAULTS, seed=number).settings()


@contextmanager
def cutting(link: RunningLink, seed: int = 0) -> Iterator[Counter[str]]:
    """Cuts and resets a link at random times until the block ends, and counts them; loopback is left as it is."""
    draw, over, struck = random.Random(seed), threading.Event(), Counter[str]()

    def strike_on() -> None:
        while not over.wait(draw.uniform(*GAP_S)):
            if draw.random() < RESET_SHARE:
                link.reset()
                struck["resets"] += 1
            else:
                seconds = draw.uniform(*CUT_S)
                link.cut(seconds)
                struck["cuts"] += 1
                over.wait(seconds)

    thread = threading.Thread(target=strike_on)
    if link.control is not None:
        thread.start()
    try:
        yield struck
    finally:
        over.set()
        if link.control is not None:
            thread.join()
