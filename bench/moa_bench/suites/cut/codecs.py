"""`moa-bench codecs`: what each memory codec costs on the wire, and what it costs the drafter.

In synchronous rounds, so that what is drafted does not depend on how fast anything was: then the tokens a verification
brings depend only on the drafter and its memory.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec, row_bytes

from moa_bench.report.experiment import Experiment
from moa_bench.report.report import LINK, facts_line, table


@dataclass(frozen=True, slots=True)
class CodecCost:
    """What one codec costs.

    Args:
        row_bytes: of a memory row.
        down_a_token: at the socket, over all answers, their prompts' memory included.
        tokens_a_verification: mean over all answers.
        tokens: of all answers.
    """

    codec: str
    row_bytes: int
    down_a_token: float
    tokens_a_verification: float
    tokens: int


def run_codecs(*, model: str, quick: bool, json_file: Path | None) -> None:
    """Measure and report.

    Raises:
        MoaError: a server or client that fails.
    """
    experiment = Experiment("codecs", quick=quick, json_file=json_file)
    experiment.result |= _measure(model, prompts=1 if quick else 12, tokens=16 if quick else 96)
    experiment.publish(_render(experiment.result), page=LINK)


def _measure(model: str, *, prompts: int, tokens: int) -> dict[str, Any]:
    from moa_shared.models import load_tokenizer, resolve

    from moa_bench.harness.byte_counter import counting
    from moa_bench.harness.drafters import drafter_file, find_drafter
    from moa_bench.harness.oracle_device import ROUNDS
    from moa_bench.harness.prompts import QUESTIONS, chat_tokens
    from moa_bench.harness.servers import running_server
    from moa_bench.harness.split_client import SplitClient, client_settings, load_split_device

    progress = make_progress()
    files = resolve(model, progress=progress)
    tokenizer = load_tokenizer(files)
    measured = find_drafter(files)
    questions = [chat_tokens(tokenizer, question) for question in QUESTIONS[:prompts]]
    settings = AnswerSettings(max_tokens=tokens, ignore_end_of_text=True)
    down, verdicts, got = Counter[Codec](), Counter[Codec](), Counter[Codec]()
    with tempfile.TemporaryDirectory(prefix="moa-bench-") as folder, make_runner() as runner:
        drafter = str(drafter_file(measured, Path(folder)))
        with running_server(model, drafter=drafter) as server, counting(server.address) as counter:
            device = load_split_device(runner, client_settings(server=server.address, model=model, drafter=drafter))
            with progress.task("Answers", len(Codec) * len(questions)) as task:
                for question, codec in product(questions, Codec):
                    before = counter.read()
                    client = SplitClient(runner, counter.address, device, codec, mode=ROUNDS)
                    try:
                        client.ask(question, settings)
                    finally:
                        client.close()
                    verdicts[codec] += client.figures.verdicts - 1  # the first one has no draft
                    got[codec] += client.figures.tokens - 1
                    down[codec] += (counter.read() - before).down
                    task.advance(1)
    rows = [
        CodecCost(
            codec.name.lower(),
            row_bytes(codec, device.memory_width),
            round(down[codec] / got[codec], 1),
            round(got[codec] / verdicts[codec], 3),
            got[codec],
        )
        for codec in Codec
    ]
    return {"target": files.target_id, "drafter": measured.description, "codecs": rows}


def _render(result: Mapping[str, Any]) -> str:
    head = ["codec", "bytes a memory row", "down a token, prompt included", "tokens a verification"]
    rows = [
        [row.codec, row.row_bytes, f"{row.down_a_token:.0f}", f"{row.tokens_a_verification:.3f}"]
        for row in result["codecs"]
    ]
    note = (
        f"Trees of the drafter ({result['drafter']}) in synchronous rounds, "
        f"{result['codecs'][0].tokens} tokens of {result['target']} with each codec.\n"
    )
    return "\n".join([facts_line(result), note, table(head, rows)])
