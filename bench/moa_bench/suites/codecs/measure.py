"""Answers with each codec, in synchronous rounds: what is drafted then does not depend on how fast anything was.

So the tokens that a verification brings depend only on the drafter and its memory.
"""

from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from itertools import product

from moa_shared.programs.progress import make_progress
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec, row_bytes

from moa_bench.harness.oracle import ROUNDS
from moa_bench.harness.prompts import chat_tokens, questions_of
from moa_bench.harness.split_client import SplitClient
from moa_bench.harness.stage import staged
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.codecs import CodecsEffort


@dataclass(frozen=True, slots=True)
class CodecCost:
    """What one codec costs."""

    codec: str
    row_bytes: int  # of a memory row
    down_a_token: float  # of messages, over all answers, their prompts' memory included
    tokens_a_verification: float  # mean over all answers
    tokens: int  # of all answers


def measure(effort: CodecsEffort, run: SuiteRun) -> Result:
    settings = AnswerSettings(max_tokens=effort.answer_tokens, ignore_end_of_text=True)
    down, verdicts, got = Counter[Codec](), Counter[Codec](), Counter[Codec]()
    with staged(run.model, run.level, run.server_cores, run.own_cores) as stage:
        questions = [chat_tokens(stage.tokenizer, question) for question in questions_of()[: effort.prompts]]
        with make_progress().task("Answers", len(Codec) * len(questions)) as task:
            for question, codec in product(questions, Codec):
                with closing(SplitClient(stage.runner, stage.address, stage.device, codec, mode=ROUNDS)) as client:
                    client.ask(question, settings)
                verdicts[codec] += client.figures.verdicts - 1  # the first one has no draft
                got[codec] += client.figures.tokens - 1
                down[codec] += client.figures.down_bytes
                task.advance(1)
    rows = [
        CodecCost(
            codec.name.lower(),
            row_bytes(codec, stage.device.memory_width),
            round(down[codec] / got[codec], 1),
            round(got[codec] / verdicts[codec], 3),
            got[codec],
        )
        for codec in Codec
    ]
    return {"target": stage.files.target_id, "drafter": stage.drafter.description, "codecs": rows}
