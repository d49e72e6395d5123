"""Settings of a training run, from a TOML or YAML file; every value is checked where it is read.

Defaults are what measured best on the default target at small budgets (docs/drafters.md); the authors' values are
named next to them, to be set where wanted.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any, Literal

import yaml
from moa_shared.drafter import KINDS
from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.values import plain_words

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for some takes a fifth of the import
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

_TRAINED = tuple(name for name, kind in KINDS.items() if kind.objective)


class TrainingSettings(BaseModel):
    """Base of all settings: frozen, and unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=False)


class DrafterSettings(TrainingSettings):
    """The drafter's network. Sizes left out are the target's own, which a warm start needs."""

    kind: str = Field(default="moa", description=f"one of {', '.join(_TRAINED)}; the others are baselines")
    own_layers: int = Field(
        default=4,
        gt=0,
        description="of independent, a seventh of the default target's; of drafters of blocks, whose authors have 5",
    )
    state_entries: tuple[int, ...] | None = Field(
        default=None,
        description="of kinds that read states, and moa without lsa: which hidden states of the target are read, 0 its "
        "embeddings, e the output of its layer e - 1; default of eagle3, as its authors: 2, the middle one, and the "
        "output of the fourth last; of drafters of blocks: five from 2 to there; of moa: none",
    )
    eagle31: bool = Field(
        default=False, description="eagle3 with a norm of each state, fed back after the last norm (EAGLE-3.1)"
    )
    block_size: int = Field(default=8, ge=2, le=64, description="rows of a block; authors: 16, and 8")
    mask_token: int | None = Field(
        default=None,
        ge=0,
        description="what blocks are filled with; default: the vocabulary's last token",
    )
    eagle_noise: float = Field(default=0.2, ge=0, description="width of the noise on EAGLE-2's inputs; authors: 0.2")
    lsa: bool = Field(
        default=True, description="false: the memory is made from state_entries, or is the last hidden state (ablation)"
    )
    ca: bool = Field(
        default=True, description="false: no cross-attention, of which the MLP is left, and no memory (ablation)"
    )
    norms_near_zero: bool = Field(default=False, description="authors' mistake: norms start near 0 (cold starts)")
    unscaled_memory_rope: bool = Field(default=False, description="authors' mistake: CA and LSA lose rope scaling")
    reused_layers: int = Field(default=0, ge=0, description="N, the target's last layers that the drafter runs too")
    draft_vocab: int = Field(default=16384, ge=0, description="tokens that the drafter can propose; 0: all")
    sa_kv_heads: int | None = Field(default=None, gt=0)
    sa_mlp: int | None = Field(default=None, gt=0)
    ca_kv_heads: int | None = Field(default=None, gt=0)
    ca_mlp: int | None = Field(default=None, gt=0)
    lsa_heads: int | None = Field(
        default=None, gt=0, description="default: twice the target's KV heads, of its head dimension"
    )
    lsa_kv_heads: int | None = Field(default=None, gt=0)
    lsa_mlp: int = Field(default=512, gt=0, description="512 of 384 * 4: the smallest that learned as fast")
    output_norm: bool = Field(
        default=True, description="a norm of its own before the head where N = 0; the authors have none"
    )
    warm_start: bool = Field(default=True, description="start from the target's layers; the authors start at random")
    memory_of: Path | None = Field(
        default=None,
        description="a drafter whose memory rows this one is to read: its memory encoder is taken over and not trained",
    )

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

    shortest: int = Field(default=5, ge=2, description="authors: 6")
    longest: int = Field(default=12, ge=2, description="authors: 14; up to 40 for pipelined drafting on old memory")
    bounded: bool = Field(default=True, description="false: an answer is one block (ablation of the bound)")
    staircase: bool = Field(default=True, description="self-attention of early training sees only its own block")
    memory_dropout: float = Field(
        default=0.1, ge=0, le=1, description="share of rows with one block a conversation: memory of its start only"
    )
    own_text: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="scheduled sampling: share of updates, from half time on, in which half of the tokens behind a "
        "block's beginning are the drafter's own choices; it learns what the target says after these",
    )
    prompts: bool = Field(default=True, description="blocks and losses in prompts too; authors: only in answers")
    depth_decay: float = Field(default=0.9, gt=0, le=1, description="weight of each further token of a block")
    anchors: int = Field(
        default=128,
        gt=0,
        description="of drafters of blocks: blocks drawn in a row of the batch; authors: 512, of up to 3,072 tokens",
    )

    @model_validator(mode="after")
    def _ordered(self) -> BlockSettings:
        if self.own_text and not self.bounded:
            raise ValueError("blocks.own_text needs blocks.bounded = true")
        if self.longest < self.shortest:
            raise ValueError(f"blocks.longest ({self.longest}) is below blocks.shortest ({self.shortest})")
        return self


class LossSettings(TrainingSettings):
    """Weights of the losses."""

    cross_entropy: float = Field(default=1.0, ge=0, description="authors: 0.1")
    feature: float = Field(default=1.0, ge=0)
    count_starts: bool = Field(default=False, description="authors' mistake: block starts count as zero state error")
    inject_true_state: bool = Field(default=False, description="authors' form for N > 0")
    steps: int = Field(default=7, gt=0, description="of eagle3's test in training; authors: 7, speculators: 3")
    step_decay: float = Field(default=0.8, gt=0, le=1, description="weight of each further step; authors: 0.8")
    guess_decay: float = Field(
        default=4.0,
        gt=0,
        description="guesses of a block until their weight is 1 / e; authors: 7, blocks of 8: 4",
    )


class OptimiserSettings(TrainingSettings):
    """The settings of AdamW."""

    learning_rate: float = Field(default=1.5e-3, gt=0, description="authors: 6e-4")
    final_learning_rate: float = Field(default=3e-5, ge=0)
    warmup_steps: int = Field(default=50, ge=0)
    schedule: Literal["cosine", "authors"] = "cosine"
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    clip: float = Field(default=1.0, gt=0)
    batch_rows: int = Field(default=2, gt=0, description="of one process; small batches learn faster on small budgets")
    row_tokens: int = Field(default=512, ge=16)
    memory_gradient_share: float = Field(
        default=0.25, gt=0, le=1, description="tokens whose memory rows carry gradients; 0.25 takes half the time of 1"
    )


class BudgetSettings(TrainingSettings):
    """When training ends: at the first of these limits."""

    tokens: int = Field(gt=0)
    minutes: float | None = Field(default=None, gt=0, description="of running time, all pieces together")


# Raised with every change of a default, or of what a setting does, that makes the same file train another drafter.
DEFAULTS_VERSION = 1
_NOT_IDENTITY = {"output", "budget", "checkpoint_minutes", "report_steps", "threads", "shards", "start_from"}


class CacheSettings(TrainingSettings):
    """What the target computed, kept for later epochs."""

    gigabytes: float = Field(
        default=0.0,
        ge=0,
        description="of disk in the output folder, each process; 14 kB a token of the default target, 5 for eagle3. "
        "An epoch whose batches are all kept takes a third less time. 0: none is kept, and every epoch packs its rows "
        "again",
    )


class FitSettings(TrainingSettings):
    """The settings of a training run."""

    @model_validator(mode="after")
    def _own_text_of_moa(self) -> FitSettings:
        if self.blocks.own_text and not KINDS[self.drafter.kind].shares_memory:
            raise ValueError(f"blocks.own_text is for drafters that share their memory, not for {self.drafter.kind}")
        return self

    target: str = "default"
    shards: tuple[Path, ...] = Field(min_length=1, description="files or folders of token shards")
    output: Path
    start_from: Path | None = Field(default=None, description="continue from this drafter instead of fresh tensors")
    seed: int = 0
    dtype: Literal["bf16", "float32"] = "bf16"
    execution: Literal["torch", "int8"] = Field(
        default="torch",
        description="what computes the target: torch in `dtype`, or the kernels, which are faster on CPUs",
    )
    threads: int = Field(default=1, ge=0, description="of torch on a CPU; 0: its own choice")
    checkpoint_minutes: float = Field(default=3.0, ge=0)
    report_steps: int = Field(default=10, gt=0)
    drafter: DrafterSettings = DrafterSettings()
    blocks: BlockSettings = BlockSettings()
    losses: LossSettings = LossSettings()
    optimiser: OptimiserSettings = OptimiserSettings()
    cache: CacheSettings = CacheSettings()
    budget: BudgetSettings

    def identity(self) -> dict[str, Any]:
        """What a run must have in common with one that it resumes: the settings that differ from their defaults, and
        the version of the defaults. So a new setting that is off by default does not keep a run from its state.
        """
        chosen = self.model_dump(mode="json", exclude=_NOT_IDENTITY, exclude_defaults=True)
        return {"defaults": DEFAULTS_VERSION, **chosen}


def load_fit_settings(path: Path, overrides: dict[str, Any] | None = None) -> FitSettings:
    """Reads a configuration; relative paths in it are relative to its folder.

    Raises:
        NotFoundError: no such file.
        ConfigError: not TOML or YAML, an unknown name, or a value that is not allowed.
    """
    if not path.is_file():
        raise NotFoundError(f"There is no configuration {path}.", hint="Check the path; training/configs has examples.")
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration {path} cannot be read: {error}.", hint="Correct that line.") from None
    if not isinstance(content, dict):
        raise ConfigError(f"The configuration {path} holds no settings.", hint="Write at least shards, output, budget.")
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
