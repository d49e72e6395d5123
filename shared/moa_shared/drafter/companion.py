"""What is known of companions: which models fit which targets, how often one agrees, how far its text can be trusted.

A model fits by family and size of the vocabulary; the tokens themselves are compared when it is loaded. Agreement
of two models is remembered in the cache. Confidence is as `moa-train calibrate` has measured for two models, in files
beside the companion's own or in the cache, else by kind.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from moa_kernels import F16, F32, Cache, KernelError, variant_name

from moa_shared.drafter.checkpoint import find_record, write_record
from moa_shared.drafter.kinds.state import Placement, TextState, batches, run_of_text
from moa_shared.drafter.kinds.weights import INT8, Rows
from moa_shared.drafting.estimates import MOST_EVIDENCE, MOST_TOKENS, PRIOR_EVIDENCE, Agreement, LearnedConfidence
from moa_shared.errors import ConfigError, DiskFullError, MismatchError, ModelSourceError
from moa_shared.models import ModelFiles, WeightReader, load_tokenizer, resolve
from moa_shared.models.checkpoints import checkpoints_between, leave_checkpoint
from moa_shared.models.network.network import Network
from moa_shared.models.network.served import check_kernels
from moa_shared.models.storage.cache import cache_root, combine, recall, remember
from moa_shared.models.tiles import map_tiles, tiles_in_memory
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.plain_text import plain_line
from moa_shared.programs.progress import Progress
from moa_shared.sampling.coupling import draft_candidates
from moa_shared.sampling.scores import TextBefore
from moa_shared.sampling.settings import Sampling

# Of those that fit, the larger one first: its id on the hub, millions of weights, its own hidden size (targets of its
# family are wider), model types of targets, rows of their embeddings, those targets for people, licence of its weights.
with Path(__file__).with_name("companions.csv").open(encoding="utf-8", newline="") as table:
    KNOWN_COMPANIONS = list(csv.DictReader(table))


def fitting_companions(config: Mapping[str, Any]) -> list[str]:
    """Those that fit a target, by their ids on the hub."""
    return [
        known["hub"]
        for known in KNOWN_COMPANIONS
        if config.get("model_type") in known["families"].split()
        and str(config.get("vocab_size")) in known["vocabularies"].split()
        and int(config.get("hidden_size") or 0) > int(known["hidden_size"])
    ]


SUFFIX = "confidence.json"  # also of NAME.confidence.json, for folders with several models
COMPANION_KEY, TARGET_KEY = "companion_fingerprint", "target_fingerprint"
# Shifts that were never measured for the two models: below most of what was (docs/measurements/alone.md): text that is
# shown and not kept is worse than a pause. Either is soon forgotten over what the target decides.
SAME_MODEL = 1.5  # sizes of the target, mostly itself in another format: 3.7; 2.1 with noise, agreeing on 0.86
ANOTHER_MODEL = 0.5  # 1.1 to 1.7 with companions that agree on 0.75 to 0.87 of the tokens, 0.2 with one of 0.34


def remember_agreement(root: Path, companion: str, target: str, agreement: Agreement) -> None:
    remember(root, _agreement_key(companion, target), {"tokens": agreement.tokens, "right": agreement.right})


def recall_agreement(root: Path, companion: str, target: str) -> Agreement:
    """What was counted before; nothing where there is no record."""
    known = recall(root, _agreement_key(companion, target))
    tokens, right = known.get("tokens"), known.get("right")
    if isinstance(tokens, int) and isinstance(right, int) and 0 <= right <= tokens <= MOST_TOKENS:
        return Agreement(tokens, right)
    return Agreement()


def _agreement_key(companion: str, target: str) -> str:
    return f"agreement-{combine([companion, target])[:32]}"


def confidence_beside(companion: ModelFiles, target: ModelFiles, root: Path) -> LearnedConfidence:
    """The confidence in a companion's text beside a target, from which it goes on to learn."""
    measured = measured_file(companion, target, root)
    return measured[1] if measured is not None else kind_confidence(companion, target)


def measured_file(companion: ModelFiles, target: ModelFiles, root: Path) -> tuple[Path, LearnedConfidence] | None:
    """The file of these two models, and what it says; None: they were never measured."""
    pair = companion.fingerprint, target.fingerprint
    beside = sorted(companion.weights[0].parent.glob(f"*{SUFFIX}"))
    paths = [path for path in beside if path.name.removesuffix(SUFFIX)[-1:] in ("", ".")]
    paths += filter(Path.is_file, [cache_file(*pair, root)])

    def read(content: Mapping[str, Any]) -> LearnedConfidence:
        shift, evidence = float(content["shift"]), float(content["evidence"])
        if not (abs(shift) <= 20 and 0 < evidence <= MOST_EVIDENCE):
            raise ValueError(f"a shift of {shift} by an evidence of {evidence}")
        return LearnedConfidence(shift, evidence)

    return find_record(paths, dict(zip((COMPANION_KEY, TARGET_KEY), pair, strict=True)), read)


def kind_confidence(companion: ModelFiles, target: ModelFiles) -> LearnedConfidence:
    """What is known of a companion that was never measured beside this target."""
    sizes = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    same = all(companion.config.get(size) == target.config.get(size) for size in sizes)
    return LearnedConfidence(SAME_MODEL if same else ANOTHER_MODEL, PRIOR_EVIDENCE)


def cache_file(companion: str, target: str, root: Path) -> Path:
    return root / "companions" / f"{combine([companion, target])[:32]}.{SUFFIX}"


def write_confidence(path: Path, confidence: LearnedConfidence, companion: str, target: str) -> None:
    shift, evidence = round(confidence.shift, 4), round(confidence.evidence, 4)
    write_record(path, {COMPANION_KEY: companion, TARGET_KEY: target, "shift": shift, "evidence": evidence})


@dataclass(frozen=True, slots=True)
class Companion:
    files: ModelFiles
    tokenizer: Tokenizer
    network: Network
    columns: int
    kv: str = F16
    weights_bytes: int = 0
    agreement: Agreement = field(default_factory=Agreement)  # with the target
    trust: LearnedConfidence = field(default_factory=lambda: LearnedConfidence(0.0, PRIOR_EVIDENCE))  # in its text

    @property
    def name(self) -> str:
        return self.files.target_id

    @property
    def fingerprint(self) -> str:
        return self.files.fingerprint

    @property
    def context_tokens(self) -> int:
        return int(self.files.config.get("max_position_embeddings") or 1 << 31)

    def new_state(self) -> CompanionState:
        return CompanionState(self.network, self.columns, kv=self.kv)

    def new_cache(self) -> Cache:
        return self.network.new_cache(kv=self.kv)

    def beside(self, target: ModelFiles, cache_dir: Path | None = None) -> Companion:
        """The same model as companion of a target, of which only the tokenizer is read."""
        columns = _columns_for(target, self.files, self.tokenizer)
        return replace(self, columns=columns)._with_records(target, cache_root(cache_dir))

    def _with_records(self, target: ModelFiles, root: Path) -> Companion:
        agreement = recall_agreement(root, self.fingerprint, target.fingerprint)
        return replace(self, agreement=agreement, trust=confidence_beside(self.files, target, root))


def find_companion(spec: str, cache_dir: Path | None = None, progress: Progress | None = None) -> ModelFiles:
    """The files of a companion, fetched if need be; refused if it is of a kind that the kernels do not compute."""
    files = resolve(spec, cache_dir, progress)
    try:
        check_kernels(files.config)
    except ModelSourceError as error:
        raise _unusable(files, error) from error
    return files


def load_companion(
    files: ModelFiles,
    target: ModelFiles,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    *,
    weights: str = INT8,
) -> Companion:
    """A companion for a target, of which only the tokenizer is read; its own files: it writes for itself.

    `weights`: "int8", or "float32" for a reference.
    """
    progress = progress or Progress()
    tokenizer = load_tokenizer(files)
    columns = _columns_for(target, files, tokenizer)  # before the weights are packed, which takes time
    packed = _weights(files, cache_dir, progress, weights)
    try:
        network = Network(packed, files.config, plain=weights != INT8)
    except ModelSourceError as error:
        raise _unusable(files, error) from error
    size = sum(each.memory.nbytes for each in packed.tiles.values())
    companion = Companion(files, tokenizer, network, columns, F16 if weights == INT8 else F32, size)
    return companion._with_records(target, cache_root(cache_dir))


def _columns_for(target: ModelFiles, files: ModelFiles, tokenizer: Tokenizer) -> int:
    """How many of a companion's logits are tokens of the target, whose vocabulary must be its own."""
    theirs = tokenizer
    if files.tokenizer_hash != target.tokenizer_hash:
        theirs = load_tokenizer(target)
        check_vocabulary(tokenizer, theirs, files.target_id, target.target_id)
    return max(_tokens(theirs), default=-1) + 1  # rows of the target's head beyond are padding


def _weights(files: ModelFiles, cache_dir: Path | None, progress: Progress, weights: str) -> WeightReader:
    """Packed in a file of the cache and mapped; in memory where that file cannot be written."""
    reader = WeightReader(files)
    if weights != INT8 or variant_name() == "numpy":
        return reader
    try:
        try:
            return reader.with_tiles(map_tiles(files, cache_root(cache_dir), progress))
        except (DiskFullError, ConfigError, OSError):
            return reader.with_tiles(tiles_in_memory(files, progress))
    except KernelError as error:
        raise _unusable(files, error) from error


def _unusable(files: ModelFiles, error: KernelError | ModelSourceError) -> ModelSourceError:
    why = error.message if isinstance(error, ModelSourceError) else error
    return ModelSourceError(
        f"{files.target_id} cannot be a companion. {why}", hint="Choose another model (docs/drafters.md#a-companion)."
    )


def check_vocabulary(companion: Tokenizer, target: Tokenizer, name: str, target_name: str) -> None:
    """Refuses a companion to which an id means another token than to the target; what only it has is never said."""
    ours = _tokens(companion)
    for number, token in _tokens(target).items():
        if (own := ours.get(number, "none")) != token:
            there, here = plain_line(token, 60), plain_line(own, 60)
            what = f"{name} cannot be a companion of {target_name}: token {number} is {there} there and {here} here."
            hint = "Choose a small model of the target's own family (docs/drafters.md#a-companion)."
            raise MismatchError(what, hint=hint)


def _tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """How tokens are spelled, in words, by id; rows that only pad a vocabulary, which GGUF files spell, are none."""
    special = set(tokenizer.special_tokens.values())
    spelled = sorted((number, text) for text, number in tokenizer.vocabulary.items() if text != f"[PAD{number}]")
    return {number: f"{'the special token ' * (number in special)}{text!r}" for number, text in spelled}


LIKELIEST = Sampling(0.0)


@dataclass(frozen=True, slots=True)
class ReadToken:
    """A committed token, and the model's own choice in its place, with its chance."""

    position: int
    chance: float
    is_chosen: bool


class CompanionState(TextState):
    """One conversation of one small model; has the interface of `DraftState`.

    `columns`: of its logits that are tokens of the target; what follows is padding. `kv`: of `moa_kernels.KV_FORMATS`.
    """

    def __init__(self, network: Network, columns: int, *, kv: str = F16) -> None:
        super().__init__(None, network.new_cache(kv=kv))
        self._network = network
        self.columns = min(columns, network.vocab_size)

    @property
    def unread(self) -> int:
        """Committed tokens that the next draft must read first, besides the newest."""
        return max(0, len(self.tokens) - 1 - self._read)

    def read(self, most: int, every: int = 0, sampling: Sampling = LIKELIEST) -> list[ReadToken]:
        """Reads up to `most` of the unread tokens ahead of the next draft, and says what it would have said there.

        `every`: of so many tokens one is looked at for that; 0: none is. `sampling`: by which the target has chosen.
        """
        if not self.unread:  # a draft may be under way
            return []
        return self._fill(self._read, min(self._read + most, len(self.tokens) - 1), every, sampling)

    def catch_up(self, most: int) -> bool:
        self.read(most)
        return not self.unread

    def begin(self) -> Rows:
        self._begin()
        last = len(self.tokens) - 1
        self._fill(min(self._read, last), last)
        if (held := self._cache.crop(last)) < last:  # which states have taken in
            self._fill(held, last)
        # As a draft, so that recurrent states can take another token in its place.
        logits = self._logits_after(self.tokens[last:], run_of_text(range(last, last + 1), drafted=1))
        self._read = last + 1
        self._drafting = True
        return logits

    def _fill(self, start: int, stop: int, every: int = 0, sampling: Sampling = LIKELIEST) -> list[ReadToken]:
        asked = []
        places = checkpoints_between(start, stop) if self._network.stack.states else []
        for first, end in pairwise(sorted({start, *places, stop})):
            for positions in batches(first, end):
                hidden = self._run(self._text(positions), run_of_text(positions))
                self._read = positions.stop
                if every:
                    asked += self._choices(positions[::every], self._logits(hidden[::every]), sampling)
            if end in places:
                leave_checkpoint(self._cache)
        return asked

    def _choices(self, places: range, logits: Rows, sampling: Sampling) -> list[ReadToken]:
        """What the model would have chosen after these committed tokens, as a draft would have had it."""
        before = None
        if sampling.reads_text:
            first = places.start + 1
            before = TextBefore(self.tokens[:first], [self.tokens[first : place + 1] for place in places])
        positions = [place + 1 for place in places]
        best, tokens = draft_candidates(logits, positions, sampling, 1, before=before)
        return [
            ReadToken(position, math.exp(min(0.0, score)), self.tokens[position] == token)
            for position, [score], [token] in zip(positions, best.tolist(), tokens.tolist(), strict=True)
        ]

    def _run(self, tokens: Sequence[int], place: Placement) -> Rows:
        last = self._network.vocab_size - 1  # the target may have more rows of padding, which no text contains
        segment = place(self._cache)
        hidden, _ = self._network.hidden([min(token, last) for token in tokens], [segment])
        self._cache.length += segment.rows
        return hidden

    def _logits_after(self, tokens: Sequence[int], place: Placement) -> Rows:
        return self._logits(self._run(tokens, place))

    def _logits(self, hidden: Rows) -> Rows:
        network = self._network
        return np.ascontiguousarray(network.logits(network.normed(hidden))[:, : self.columns])
