"""`moa-bench reveal`: how much of a text its memory rows give back to somebody who has them without the tokens.

The attacker holds the target's embeddings, as every client does, and pairs of rows and tokens of other texts. One
linear map from rows to embeddings, fitted on them by ridge regression, and the nearest token: no more is needed to show
that rows are as secret as the text. A stronger attacker finds more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from moa_shared.protocol.memory_codec import Codec, decode, encode, row_bytes

from moa_bench.report.experiment import Experiment
from moa_bench.report.report import SECURITY, machine_line, table

if TYPE_CHECKING:
    from moa_shared.models import ModelFiles

Rows = npt.NDArray[np.float32]

TEXTS, QUICK_TEXTS = 300, 6  # of training/data; every fifth is held back
LONGEST = 384  # tokens that are read of each
OFFSETS = {"token before": -1, "own token": 0, "token after": 1}  # which token a row is asked for
RIDGE = 1e-3  # of the mean eigenvalue: rows have more directions than the tokens need
SCORED = 512  # rows whose scores are computed at once: 100 MB


@dataclass(frozen=True, slots=True)
class Seen:
    """What the attacker sees of one text: its rows of each plane, and for the fit its tokens.

    Args:
        answer: where the answer begins; before it is much that all texts have in common.
    """

    tokens: npt.NDArray[np.int64]
    answer: int
    planes: dict[str, Rows]


@dataclass(frozen=True, slots=True)
class Recovered:
    """How many tokens of texts held back were named.

    Args:
        row_bytes: of one row on the wire.
        shares: by which token was asked for.
    """

    plane: str
    codec: str
    row_bytes: int
    shares: dict[str, float]


def run_reveal(*, model: str, quick: bool, json_file: Path | None) -> None:
    """Measure and report.

    Raises:
        MoaError: the model, its drafters or the texts cannot be used.
    """
    from moa_shared.models import resolve
    from moa_shared.models.weights.weights import EMBEDDINGS, WeightReader
    from moa_shared.programs.progress import make_progress

    experiment = Experiment("reveal", quick=quick, json_file=json_file)
    progress = make_progress()
    files = resolve(model, progress=progress)
    embeddings = _unit(np.asarray(WeightReader(files).array(EMBEDDINGS), dtype=np.float32))
    count = QUICK_TEXTS if quick else TEXTS
    with progress.task("texts", count) as task:
        seen = []
        for each in _read_texts(files, count):
            seen.append(each)
            task.advance(1)
    fitted, held_back = [each for i, each in enumerate(seen) if i % 5], seen[::5]
    recovered = []
    for plane in seen[0].planes:
        for codec in Codec:
            shares = {
                name: _share(fitted, held_back, plane, codec, offset, embeddings) for name, offset in OFFSETS.items()
            }
            width = seen[0].planes[plane].shape[1]
            recovered.append(Recovered(plane, codec.name.lower(), row_bytes(codec, width), shares))
    known, asked = (np.concatenate([each.tokens[each.answer :] for each in texts]) for texts in (fitted, held_back))
    most_common = float(np.mean(asked == np.bincount(known).argmax()))
    experiment.result |= {
        "target": files.target_id,
        "fitted_tokens": len(known),
        "asked_tokens": len(asked),
        "most_common": most_common,
        "recovered": recovered,
    }
    experiment.publish(render(experiment.result), page=SECURITY)


def render(result: dict[str, Any]) -> str:
    """One row a plane and codec."""
    fitted, asked = result["fitted_tokens"], result["asked_tokens"]
    note = (
        f"Fitted on {fitted:,} tokens of answers, asked for {asked:,} of other answers. "
        f"Always naming the most common token: {result['most_common']:.3f}.\n"
    )
    rows = [
        [each.plane, each.codec, each.row_bytes, *(f"{share:.3f}" for share in each.shares.values())]
        for each in result["recovered"]
    ]
    head = ["plane", "codec", "bytes a row", *OFFSETS]
    return "\n".join([machine_line(result), note, table(head, rows)])


def _read_texts(files: ModelFiles, count: int) -> Iterator[Seen]:
    """Texts that the target wrote, as the shipped drafters' planes show them."""
    from moa_shared.drafter.checkpoint.shipped import DEEP_DRAFTER
    from moa_shared.models.network.network import Network
    from moa_shared.models.weights.weights import WeightReader
    from moa_shared.programs.progress import SilentProgress
    from moa_training.data.shards import find_shards, read_shard
    from moa_training.teacher.target_reader import KernelReader

    from moa_bench.harness.drafters import find_drafter
    from moa_bench.report.report import checkout_root

    drafter = find_drafter(files, DEEP_DRAFTER).checkpoint
    encode_rows = drafter.rows()
    reader = KernelReader(Network(WeightReader(files), files.config, SilentProgress()), drafter.config.reused_layers)
    shards = find_shards([(checkout_root() or Path()) / "training" / "data"])
    rows = (row for shard in shards for row in read_shard(shard, files.tokenizer_hash, int(files.config["vocab_size"])))
    for row in islice((row for row in rows if row.answers and row.answers[0][0] < LONGEST // 2), count):
        ids = list(row.ids[:LONGEST])
        reading = reader.read(ids)
        planes = {"memory": encode_rows(reading.kv)}
        if reading.state is not None:
            planes["state"] = reading.state
        yield Seen(np.asarray(ids), row.answers[0][0], planes)


def _share(
    fitted: Sequence[Seen], held_back: Sequence[Seen], plane: str, codec: Codec, offset: int, embeddings: Rows
) -> float:
    """How many tokens of texts held back the nearest embedding names."""
    rows, tokens = _pairs(fitted, plane, codec, offset)
    mean = rows.mean(axis=0)
    rows -= mean
    gram = rows.T @ rows
    gram += RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram), dtype=np.float32)
    linear = np.linalg.solve(gram, rows.T @ embeddings[tokens])
    asked, expected = _pairs(held_back, plane, codec, offset)
    guessed = (asked - mean) @ linear
    right = 0
    for start in range(0, len(guessed), SCORED):
        named = (guessed[start : start + SCORED] @ embeddings.T).argmax(axis=1)
        right += int(np.sum(named == expected[start : start + SCORED]))
    return right / len(expected)


def _pairs(texts: Sequence[Seen], plane: str, codec: Codec, offset: int) -> tuple[Rows, npt.NDArray[np.int64]]:
    """Rows as they arrive, and the tokens at `offset` from them."""
    rows, tokens = [], []
    for text in texts:
        length = len(text.tokens)
        at = np.arange(text.answer, length - max(0, offset))
        whole = text.planes[plane]
        rows.append(decode(encode(whole, codec), codec, length, whole.shape[1])[at])
        tokens.append(text.tokens[at + offset])
    return np.concatenate(rows), np.concatenate(tokens)


def _unit(vectors: Rows) -> Rows:
    """Less their mean, of length 1."""
    centred: Rows = vectors - vectors.mean(axis=0)
    unit: Rows = centred / np.linalg.norm(centred, axis=1, keepdims=True).clip(1e-6)
    return unit
