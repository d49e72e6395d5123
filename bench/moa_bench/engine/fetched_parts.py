"""`python -m moa_bench.engine.fetched_parts`: what FetchDrafter moves, and what packed parts cost in drafts.

State: the parts as a server makes them for clients, in a folder of this run. Every place of the target's own answers is
drafted with each kind of parts; acceptance is counted as `moa-train evaluate` counts it.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click
from moa.v1 import moa_pb2 as pb
from moa_server.service.fetch import DrafterFile, DrafterFiles
from moa_shared.drafter import Checkpoint
from moa_shared.drafting import draft_chain
from moa_shared.drafting.dynamic_tree import TreeShape
from moa_shared.models import ModelFiles, WeightReader, resolve
from moa_shared.programs.progress import make_progress
from moa_shared.protocol.levels import INT8
from moa_shared.sampling.coupling import Sampling
from moa_training.data.questions import AnsweredQuestion, answer_questions, read_questions
from moa_training.evaluation.acceptance import Acceptance, DrafterSubject, Shape
from moa_training.evaluation.evaluation import find_checkpoint, load_fitting_checkpoint
from moa_training.teacher.target_reader import TargetReader, load_reader

ANSWER_TOKENS, PROMPT_TOKENS = 96, 512  # of a question: as the tables of docs/drafters.md
CHAIN = 5
SHAPES = (Shape(CHAIN), Shape(24, TreeShape(depth=5, breadth=6, nodes=24)))
WEIGHTS = ("int8", "float32")
PARTS = ("bf16", "packed")
Chain = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drafting:
    """How a drafter does with one kind of parts.

    Args:
        weights: that it computes with.
        parts: of the target, as fetched.
        places: that were drafted at.
        equal_tokens, equal_chains: share of places whose first guess, and whose chain, is that with bf16 parts.
        lengths: tokens a forward by shape.
    """

    weights: str
    parts: str
    places: int
    equal_tokens: float
    equal_chains: float
    lengths: dict[str, float]


class PartsSubject(DrafterSubject):
    """A drafter over parts of the target as a client fetches them; the server's half is computed as ever."""

    def __init__(self, checkpoint: Checkpoint, reader: TargetReader, parts: ModelFiles, weights: str) -> None:
        super().__init__(checkpoint, reader, WeightReader(parts), weights)

    def chains(self, question: AnsweredQuestion) -> list[Chain]:
        """A chain drafted at every place of an answer."""
        ids = [*question.prompt, *question.answer]
        memory, state = self._read(ids)
        drafter = self._new_state()
        chains, known = [], 0
        for newest in range(len(question.prompt), len(ids)):
            drafter.extend(ids[len(drafter.tokens) : newest + 1])
            drafter.append_memory(known, memory[known:newest])
            if state is not None:
                drafter.append_reused_state(known, state[known:newest])
            known = newest
            chains.append(tuple(draft_chain(drafter, CHAIN, Sampling()).tokens))
        return chains


def make_parts(files: ModelFiles, drafter: Path, reused_layers: int, folder: Path) -> dict[str, int]:
    """Sizes of what a server offers, by `kind name`; the files lie below `folder`."""
    served = DrafterFiles(files, pb.Identity(), [DrafterFile(drafter, reused_layers)], folder)
    manifests: list[pb.PartManifest] = []

    async def send(message: pb.FetchDrafterResponse) -> None:
        manifests.append(message.manifest)

    asyncio.run(served.answer(pb.FetchDrafterRequest(), send))
    return {f"{entry.kind} {entry.name}": entry.size for entry in manifests[0].files}


def parts_of(files: ModelFiles, folder: Path, precision: str) -> ModelFiles:
    """The target of which only fetched parts are there."""
    return replace(files, weights=tuple(sorted(folder.glob(f"served-parts/*/*.{precision}.safetensors"))))


def compare(subject: PartsSubject, reference: list[Chain], questions: Sequence[AnsweredQuestion]) -> Drafting:
    """One kind of parts; an empty `reference` is filled with its chains."""
    chains = [chain for question in questions for chain in subject.chains(question)]
    reference[:] = reference or chains
    totals = [Acceptance() for _ in SHAPES]
    for question in questions:
        for total, part in zip(totals, subject.replay(question.prompt, question.answer, SHAPES), strict=True):
            total.merge(part)
    pairs = list(zip(chains, reference, strict=True))
    return Drafting(
        "",
        "",
        len(pairs),
        sum(one[0] == other[0] for one, other in pairs) / len(pairs),
        sum(one == other for one, other in pairs) / len(pairs),
        {shape.name: total.length for shape, total in zip(SHAPES, totals, strict=True)},
    )


@click.command()
@click.argument("questions", type=click.Path(path_type=Path))
@click.option("--limit", type=int, default=1, show_default=True, help="Questions of each category.")
@click.option("--model", default="default", show_default=True, help="Target: default, hub id, folder or .gguf.")
@click.option("--drafter", default="default", show_default=True, help="Checkpoint: a file, or default.")
def main(questions: Path, limit: int, model: str, drafter: str) -> None:
    """Bytes that a client fetches, and drafts with parts in bf16 and packed, as JSON."""
    progress = make_progress()
    files = resolve(model, progress=progress)
    checkpoint = load_fitting_checkpoint(drafter, files)
    reused = checkpoint.config.reused_layers
    asked, _ = read_questions(questions, files, limit, PROMPT_TOKENS)
    reader = load_reader(files, reused, INT8, progress)
    answered = answer_questions(asked, files, reader, ANSWER_TOKENS, progress)
    draftings = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sizes = make_parts(files, find_checkpoint(drafter, files), reused, folder)
        for weights in WEIGHTS:
            reference: list[Chain] = []
            for precision in PARTS:
                subject = PartsSubject(checkpoint, reader, parts_of(files, folder, precision), weights)
                draftings.append(replace(compare(subject, reference, answered), weights=weights, parts=precision))
                progress.note(f"{draftings[-1]}")
    results = {"bytes": sizes, "questions": len(answered), "drafting": [asdict(drafting) for drafting in draftings]}
    click.echo(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
