"""Settings of a training run, from a TOML or YAML file; every value is checked where it is read.

Defaults are what measured best on the default target at small budgets (docs/drafters.md); the authors' values are
named next to them, to be set where wanted.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from moa_shared.drafter.kinds import KINDS
from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.config import plain_words

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for some takes a fifth of the import
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

# Raised with every change of a default, or of what a setting does, that makes the same file train another drafter.
DEFAULTS_VERSION = 1
Share = Annotated[float, Field(ge=0, le=1)]
Decay = Annotated[float, Field(gt=0, le=1)]
_TRAINED = tuple(name for name, kind in KINDS.items() if kind.objective)
_NOT_IDENTITY = {"output", "budget", "checkpoint_minutes", "report_steps", "threads", "shards", "start_from"}


class TrainingSettings(BaseModel):
    """Base of all settings: frozen, and unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=False)


class DrafterSettings(TrainingSettings):
    """The drafter's network. Sizes left out are the target's own, which a warm start needs."""

    kind: str = "moa"  # or another of KINDS, the baselines
    own_layers: PositiveInt = 4  # of independent, a seventh of the default target's; of drafters of blocks: authors 5
    # Which hidden states of the target are read, 0 its embeddings, e the output of its layer e - 1; of kinds that read
    # states, and moa without lsa. Default of eagle3, as its authors: 2, the middle one, and the output of the fourth
    # last; of drafters of blocks: five from 2 to there; of moa: none.
    state_entries: tuple[int, ...] | None = None
    eagle31: bool = False  # eagle3 with a norm of each state, fed back after the last norm (EAGLE-3.1)
    block_size: int = Field(default=8, ge=2, le=64)  # rows of a block; authors: 16, and 8
    mask_token: NonNegativeInt | None = None  # what blocks are filled with; default: the vocabulary's last token
    eagle_noise: NonNegativeFloat = 0.2  # width of the noise on EAGLE-2's inputs; authors: 0.2
    lsa: bool = True  # false: the memory is made from state_entries, or is the last hidden state (ablation)
    ca: bool = True  # false: no cross-attention, of which the MLP is left, and no memory (ablation)
    norms_near_zero: bool = False  # authors' mistake: norms start near 0 (cold starts)
    unscaled_memory_rope: bool = False  # authors' mistake: CA and LSA lose rope scaling
    reused_layers: NonNegativeInt = 0  # N, the target's last layers that the drafter runs too
    draft_vocab: NonNegativeInt = 16384  # tokens that the drafter can propose; 0: all
    sa_kv_heads: PositiveInt | None = None
    sa_mlp: PositiveInt | None = None
    ca_kv_heads: PositiveInt | None = None
    ca_mlp: PositiveInt | None = None
    lsa_heads: PositiveInt | None = None  # default: twice the target's KV heads, of its head dimension
    lsa_kv_heads: PositiveInt | None = None
    lsa_mlp: PositiveInt = 512  # of 384 * 4: the smallest that learned as fast
    output_norm: bool = True  # a norm of its own before the head where N = 0; the authors have none
    warm_start: bool = True  # start from the target's layers; the authors start at random
    # A drafter whose memory rows this one is to read: its memory encoder is taken over and not trained.
    memory_of: Path | None = None

    @model_validator(mode="after")
    def _of_one_kind(self) -> DrafterSettings:
        kind = KINDS.get(self.kind)
        if kind is None or not kind.objective:
            raise ValueError(f"drafter.kind is {self.kind}, expected one of {', '.join(_TRAINED)}")
        asked = {
            "reused_layers": bool(self.reused_layers),
            "state_entries": self.state_entries is not None,
            "ca": not self.ca,
            "normed_feedback": self.eagle31,
        }
        for option, is_asked in asked.items():
            if is_asked and option not in kind.takes:
                takers = " and ".join(name for name in _TRAINED if option in KINDS[name].takes)
                said = "eagle31" if option == "normed_feedback" else option
                raise ValueError(f"drafter.{said} is for {takers} drafters only, not for {self.kind}")
        if self.memory_of is not None and not kind.shares_memory:
            raise ValueError(f"drafter.memory_of is for drafters that share their memory, not for {self.kind}")
        if self.lsa and self.ca and self.state_entries is not None and not kind.reads_states:
            raise ValueError("drafter.state_entries is in place of layer self-attention: drafter.lsa must be false")
        if not self.ca and (self.memory_of is not None or self.state_entries is not None):
            raise ValueError("a drafter without ca reads no memory_of, no state_entries")
        if self.norms_near_zero and self.warm_start:
            raise ValueError("drafter.norms_near_zero needs drafter.warm_start = false")
        return self


class BlockSettings(TrainingSettings):
    """How far beyond its memory the drafter predicts."""

    shortest: int = Field(default=5, ge=2)  # authors: 6
    longest: int = Field(default=12, ge=2)  # authors: 14; up to 40 for pipelined drafting on old memory
    bounded: bool = True  # false: an answer is one block (ablation of the bound)
    staircase: bool = True  # self-attention of early training sees only its own block
    memory_dropout: Share = 0.1  # of rows with one block a conversation: memory of its start only
    # Scheduled sampling: share of updates, from half time on, in which half of the tokens behind a block's beginning
    # are the drafter's own choices; it learns what the target says after these.
    own_text: Share = 0.0
    prompts: bool = True  # blocks and losses in prompts too; authors: only in answers
    depth_decay: Decay = 0.9  # weight of each further token of a block
    anchors: PositiveInt = 128  # blocks drawn in a row of the batch; authors: 512, of up to 3,072 tokens

    @model_validator(mode="after")
    def _ordered(self) -> BlockSettings:
        if self.own_text and not self.bounded:
            raise ValueError("blocks.own_text needs blocks.bounded = true")
        if self.longest < self.shortest:
            raise ValueError(f"blocks.longest ({self.longest}) is below blocks.shortest ({self.shortest})")
        return self


class LossSettings(TrainingSettings):
    """Weights of the losses."""

    cross_entropy: NonNegativeFloat = 1.0  # authors: 0.1, which learned more slowly on small budgets
    feature: NonNegativeFloat = 1.0  # with N > 0 half of it goes to the state that enters the reused layers
    count_starts: bool = False  # authors' mistake: block starts count as zero state error
    inject_true_state: bool = False  # authors' form for N > 0
    steps: PositiveInt = 7  # of eagle3's test in training; authors: 7, speculators: 3
    step_decay: Decay = 0.8  # weight of each further step; authors: 0.8
    guess_decay: PositiveFloat = 4.0  # guesses of a block until their weight is 1 / e; authors: 7, blocks of 8: 4


class OptimiserSettings(TrainingSettings):
    """The settings of AdamW."""

    learning_rate: PositiveFloat = 1.5e-3  # authors: 6e-4
    final_learning_rate: NonNegativeFloat = 3e-5
    warmup_steps: NonNegativeInt = 50
    schedule: Literal["cosine", "authors"] = "cosine"
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    clip: PositiveFloat = 1.0
    batch_rows: PositiveInt = 2  # of one process; small batches learn faster on small budgets
    row_tokens: int = Field(default=512, ge=16)
    memory_gradient_share: Decay = 0.25  # tokens whose memory rows carry gradients; 0.25 takes half the time of 1


class BudgetSettings(TrainingSettings):
    """When training ends: at the first of these limits."""

    tokens: PositiveInt
    minutes: PositiveFloat | None = None  # of running time, all pieces together


class FitSettings(TrainingSettings):
    """The settings of a training run."""

    target: str = "default"
    shards: tuple[Path, ...] = Field(min_length=1)  # files or folders of token shards
    output: Path
    start_from: Path | None = None  # continue from this drafter instead of fresh tensors
    seed: int = 0
    dtype: Literal["bf16", "float32"] = "bf16"
    execution: Literal["torch", "int8"] = "torch"  # of the target: torch in `dtype`, or the kernels, faster on CPUs
    threads: NonNegativeInt = 1  # of torch on a CPU; 0: its own choice
    checkpoint_minutes: NonNegativeFloat = 3.0
    report_steps: PositiveInt = 10
    drafter: DrafterSettings = DrafterSettings()
    blocks: BlockSettings = BlockSettings()
    losses: LossSettings = LossSettings()
    optimiser: OptimiserSettings = OptimiserSettings()
    budget: BudgetSettings

    @model_validator(mode="after")
    def _own_text_of_moa(self) -> FitSettings:
        if self.blocks.own_text and not KINDS[self.drafter.kind].shares_memory:
            raise ValueError(f"blocks.own_text is for drafters that share their memory, not for {self.drafter.kind}")
        return self

    def identity(self) -> dict[str, Any]:
        """What a run must have in common with one that it resumes: the settings that differ from their defaults, and
        the version of the defaults. So a new setting that is off by default does not keep a run from its state.
        """
        chosen = self.model_dump(mode="json", exclude=_NOT_IDENTITY, exclude_defaults=True)
        return {"defaults": DEFAULTS_VERSION, **chosen}


def load_fit_settings(path: Path, overrides: dict[str, Any] | None = None) -> FitSettings:
    """Reads a configuration; relative paths in it are relative to its folder."""
    if not path.is_file():
        raise NotFoundError(f"There is no configuration {path}.", hint="Check the path; training/configs has examples.")
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration {path} cannot be read: {error}.", hint="Correct that line.") from None
    if not isinstance(content, dict):
        raise ConfigError(f"The configuration {path} holds no settings.", hint="Write at least shards, output, budget.")
    if "cache" in content:
        raise ConfigError(
            f"[cache] in {path} is not a setting any more. Each epoch computes the target again.",
            hint="Leave it out: moa 0.2.0 was the last that had it.",
        )
    try:
        settings = FitSettings.model_validate({**content, **(overrides or {})})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        problem = "is not a setting" if first["type"] == "extra_forbidden" else plain_words(first["msg"])
        given = f"{name} in {path} is {first['input']!r}"
        if first["type"] in ("value_error", "missing"):  # the problem names the setting
            given = f"In {path}" if first["type"] == "value_error" else f"{name} in {path}"
        raise ConfigError(f"{given}: {problem}.", hint="training/configs has examples.") from None
    folder, drafter = path.parent, settings.drafter
    if drafter.memory_of is not None:
        drafter = drafter.model_copy(update={"memory_of": folder / drafter.memory_of})
    update = {"output": folder / settings.output, "shards": tuple(folder / shard for shard in settings.shards)}
    if settings.start_from is not None:
        update["start_from"] = folder / settings.start_from
    return settings.model_copy(update=update | {"drafter": drafter})
