"""`moa-bench timeline`: one answer in each way over a link of fixed delay, every frame and draft step, as a picture.

The delay is fixed so that what the client sees tells when it happened at the server: a verdict that comes at t left it
at t less the delay, after a forward of step_ms.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from moa_shared.programs.progress import make_progress
from moa_shared.programs.run_loop import make_runner
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.cores import on_cores
from moa_bench.network.emulated import Link, linked
from moa_bench.network.oracle import Script
from moa_bench.report.experiment import Experiment
from moa_bench.report.report import checkout_root, to_json, write_text
from moa_bench.timeline.traced_link import Note

TITLES = {
    "streaming": "Streaming: the server alone",
    "rounds": "Synchronous rounds: each end waits for the other",
    "streamed": "Streamed drafts: nobody waits",
}


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened in one answer, seconds since its question.

    Args:
        way: key of TITLES.
        notes: frames at the client.
        drafting: begin and end of each draft step.
    """

    way: str
    notes: tuple[Note, ...]
    drafting: tuple[tuple[float, float], ...]

    def span(self, seconds: float) -> Timeline:
        """The part from the second verdict on, where drafting has begun, `seconds` long; its clock starts there."""
        verdicts = [note.at_s for note in self.notes if note.kind == "verdict"]
        start = verdicts[min(1, len(verdicts) - 1)]
        return Timeline(
            self.way,
            tuple(
                dataclasses.replace(note, at_s=note.at_s - start)
                for note in self.notes
                if 0 <= note.at_s - start <= seconds
            ),
            tuple((a - start, b - start) for a, b in self.drafting if a >= start and b - start <= seconds),
        )


def run_timeline(*, model: str, pin: bool, rtt_ms: float, acceptance: float, tokens: int, out: Path | None) -> None:
    """Record and draw; `docs/img/link-timelines.png` and `bench/results/timeline.json` of the checkout, or `out`.

    Raises:
        MoaError: a server, link or client that fails.
    """
    experiment = Experiment("timeline", quick=False, json_file=None, pin=pin)
    from moa_bench.timeline.picture import draw

    link = Link(f"RTT {rtt_ms:g} ms", rtt_ms / 2)
    with on_cores(experiment.own_cores):
        timelines = _record(model, link, acceptance, tokens, experiment.server_cores, experiment.own_cores)
    experiment.result |= {"link": link, "acceptance": acceptance, "timelines": timelines}
    root = checkout_root()
    if out is None and root is not None:
        write_text(root / "bench" / "results" / "timeline.json", to_json(experiment.result))
        out = root / "docs" / "img" / "link-timelines.png"
    out = out or Path("link-timelines.png")
    draw(timelines, link, out)
    click.echo(f"{out}: " + ", ".join(f"{line.way} {len(line.notes)} frames" for line in timelines))


def _record(
    model: str,
    link: Link,
    acceptance: float,
    tokens: int,
    server_cores: set[int] | None,
    own_cores: set[int] | None,
) -> list[Timeline]:
    from moa_shared.models import load_tokenizer, resolve

    from moa_bench.harness.drafters import drafter_file, find_drafter
    from moa_bench.harness.prompts import chat_tokens
    from moa_bench.harness.servers import running_server
    from moa_bench.harness.split_client import SplitClient, client_settings, load_split_device
    from moa_bench.network.network import SURE_QUESTIONS
    from moa_bench.network.step_cost import ask_step_cost
    from moa_bench.network.ways import MODES, best_length, with_oracle

    files = resolve(model, progress=make_progress())
    prompt = chat_tokens(load_tokenizer(files), SURE_QUESTIONS[0])
    vocab_size = int(files.config["vocab_size"])
    settings = AnswerSettings(max_tokens=tokens, ignore_end_of_text=True)
    with tempfile.TemporaryDirectory(prefix="moa-bench-") as folder, make_runner() as runner:
        drafter = str(drafter_file(find_drafter(files), Path(folder)))
        with (
            running_server(model, drafter=drafter, cores=server_cores) as server,
            linked(link, server.address, cores=own_cores) as running,
        ):
            device = load_split_device(runner, client_settings(server=server.address, model=model, drafter=drafter))
            alone = dataclasses.replace(device, drafter=None)
            text: Sequence[int] = ()
            cost = ask_step_cost(runner, server.address)
            lines = []
            for way in TITLES:
                script = Script((*prompt, *text), acceptance, 0, vocab_size)
                steps: list[tuple[float, float]] = []
                length = best_length(acceptance, link.rtt_ms, 5.0, cost)
                mine = with_oracle(device, script, 5.0, length, steps) if text else alone
                client = SplitClient(
                    runner, running.address, mine, mode=MODES["streamed" if way == "streaming" else way]
                )
                try:
                    text = client.ask(prompt, settings).tokens
                finally:
                    client.close()
                began = client.began_s
                lines.append(
                    Timeline(
                        way,
                        tuple(dataclasses.replace(note, at_s=note.at_s - began) for note in client.notes),
                        tuple((begin - began, end - began) for begin, end in steps),
                    )
                )
    return lines
