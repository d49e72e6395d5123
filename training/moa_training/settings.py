"""Settings of a training run and options of the commands of `moa-train`: each with its default, limits and help.

Defaults of a run are what measured best on the default target at small budgets (docs/drafters.md); the authors' values
are named next to them. Light: each --help needs this.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.programs.config import SettingsBase, read_table, setting

# Raised with every change of a default, or of what a setting does, that makes the same file train another drafter.
DEFAULTS_VERSION = 1
_MISTAKE = "It repeated what the authors' code does by mistake."
_NOT_IDENTITY = {"output", "budget", "checkpoint_minutes", "report_steps", "threads", "shards", "start_from"}


@dataclass(frozen=True, kw_only=True)
class DrafterSettings(SettingsBase):
    """The drafter's network. Sizes left out are the target's own, which a warm start needs."""

    RETIRED: ClassVar[Mapping[str, str]] = dict.fromkeys(("norms_near_zero", "unscaled_memory_rope"), _MISTAKE)

    kind: str = setting("moa", "Of the drafter: moa, or one of the others that are trained.")
    # A seventh of the default target's.
    own_layers: int = setting(4, "Of an independent drafter, or one of blocks; authors 5.", ge=1)
    state_entries: tuple[int, ...] | None = setting(
        None,
        "Hidden states of the target that are read, 0 its embeddings, e the output of its layer e - 1; of kinds that "
        "read states, and moa without lsa.",
        shown="the authors'; of moa none",
    )
    eagle31: bool = setting(False, "EAGLE-3 with a norm of each state, fed back after the last norm (EAGLE-3.1).")
    block_size: int = setting(8, "Rows of a block; authors 16, and 8.", ge=2, le=64)
    mask_token: int | None = setting(None, "What blocks are filled with.", shown="the vocabulary's last token", ge=0)
    eagle_noise: float = setting(0.2, "Width of the noise on EAGLE-2's inputs; authors 0.2.", ge=0)
    lsa: bool = setting(True, "Off: the memory is made from state_entries, or is the last hidden state (ablation).")
    ca: bool = setting(True, "Off: no cross-attention, of which the MLP is left, and no memory (ablation).")
    reused_layers: int = setting(0, "N, the target's last layers that the drafter runs too.", ge=0)
    draft_vocab: int = setting(16384, "How many tokens the drafter can propose; 0: all.", ge=0)
    sa_kv_heads: int | None = setting(None, "Key/value heads of self-attention.", shown="the target's", ge=1)
    sa_mlp: int | None = setting(None, "Width of its MLP.", shown="the target's", ge=1)
    ca_kv_heads: int | None = setting(None, "Key/value heads of cross-attention.", shown="the target's", ge=1)
    ca_mlp: int | None = setting(None, "Width of its MLP.", shown="the target's", ge=1)
    lsa_heads: int | None = setting(None, "Heads of layer self-attention.", shown="twice the target's KV heads", ge=1)
    lsa_kv_heads: int | None = setting(None, "Key/value heads of it.", shown="the target's", ge=1)
    lsa_mlp: int = setting(512, "Width of its MLP; of 384 * 4 the smallest that learned as fast.", ge=1)
    output_norm: bool = setting(True, "A norm of its own before the head where N = 0; the authors have none.")
    warm_start: bool = setting(True, "Start from the target's layers; the authors start at random.")
    memory_of: Path | None = setting(
        None, "A drafter whose memory this one is to read: its memory encoder is taken over and not trained."
    )

    def check(self) -> None:
        from moa_shared.drafter.kinds import KINDS

        trained = [name for name, kind in KINDS.items() if kind.objective]
        if self.kind not in trained:
            raise ValueError(f"drafter.kind is {self.kind}, expected one of {', '.join(trained)}")
        kind = KINDS[self.kind]
        asked = {
            "reused_layers": bool(self.reused_layers),
            "state_entries": self.state_entries is not None,
            "ca": not self.ca,
            "normed_feedback": self.eagle31,
        }
        for option, is_asked in asked.items():
            if is_asked and option not in kind.takes:
                takers = " and ".join(name for name in trained if option in KINDS[name].takes)
                said = "eagle31" if option == "normed_feedback" else option
                raise ValueError(f"drafter.{said} is for {takers} drafters only, not for {self.kind}")
        if self.memory_of is not None and not kind.shares_memory:
            raise ValueError(f"drafter.memory_of is for drafters that share their memory, not for {self.kind}")
        if self.lsa and self.ca and self.state_entries is not None and not kind.reads_states:
            raise ValueError("drafter.state_entries is in place of layer self-attention: drafter.lsa must be false")
        if not self.ca and (self.memory_of is not None or self.state_entries is not None):
            raise ValueError("a drafter without ca reads no memory_of, no state_entries")


@dataclass(frozen=True, kw_only=True)
class BlockSettings(SettingsBase):
    shortest: int = setting(5, "Of a block; authors 6.", ge=2)
    longest: int = setting(12, "Of a block; authors 14, up to 40 for pipelined drafting on old memory.", ge=2)
    bounded: bool = setting(True, "Off: an answer is one block (ablation).")
    staircase: bool = setting(True, "Self-attention of early training sees only its own block.")
    memory_dropout: float = setting(
        0.1, "Share of rows with one block a conversation: memory of its start only.", ge=0, le=1
    )
    own_text: float = setting(
        0.0,
        "Scheduled sampling: share of updates, from half time on, in which half of the tokens behind a block's "
        "beginning are the drafter's own choices.",
        ge=0,
        le=1,
    )
    prompts: bool = setting(True, "Blocks and losses in prompts too; authors only in answers.")
    depth_decay: float = setting(0.9, "Weight of each further token of a block.", gt=0, le=1)
    anchors: int = setting(128, "Blocks drawn in a row of the batch; authors 512, of up to 3,072 tokens.", ge=1)


@dataclass(frozen=True, kw_only=True)
class LossSettings(SettingsBase):
    RETIRED: ClassVar[Mapping[str, str]] = {"inject_true_state": _MISTAKE}

    cross_entropy: float = setting(1.0, "Authors 0.1, which learned more slowly on small budgets.", ge=0)
    feature: float = setting(1.0, "With N > 0 half of it goes to the state that enters the reused layers.", ge=0)
    count_starts: bool = setting(False, "The authors' mistake: block starts count as zero state error.")
    steps: int = setting(7, "Of EAGLE-3's test in training; authors 7, speculators 3.", ge=1)
    step_decay: float = setting(0.8, "Weight of each further step; authors 0.8.", gt=0, le=1)
    guess_decay: float = setting(4.0, "Guesses of a block until their weight is 1 / e; authors 7, of 8 rows 4.", gt=0)


@dataclass(frozen=True, kw_only=True)
class OptimiserSettings(SettingsBase):
    RETIRED: ClassVar[Mapping[str, str]] = {"schedule": "The rate falls by half a cosine."}

    learning_rate: float = setting(1.5e-3, "Authors 6e-4.", gt=0)
    final_learning_rate: float = setting(3e-5, "At the end.", ge=0)
    warmup_steps: int = setting(50, "Until the full rate.", ge=0)
    beta1: float = setting(0.9, "Of AdamW.", ge=0, lt=1)
    beta2: float = setting(0.95, "Of AdamW.", ge=0, lt=1)
    clip: float = setting(1.0, "The most that a gradient's norm may be.", gt=0)
    batch_rows: int = setting(2, "Of one process; small batches learn faster on small budgets.", ge=1)
    row_tokens: int = setting(512, "Tokens of a row.", ge=16)
    memory_gradient_share: float = setting(
        0.25, "Of tokens whose memory rows carry gradients; 0.25 takes half the time of 1.", gt=0, le=1
    )


@dataclass(frozen=True, kw_only=True)
class BudgetSettings(SettingsBase):
    """When training ends: at the first of these limits."""

    tokens: int = setting(0, "Of training text.", shown="needed", ge=1)
    minutes: float | None = setting(None, "Of running time, all pieces together.", shown="any number", gt=0)


@dataclass(frozen=True, kw_only=True)
class FitSettings(SettingsBase):
    """A training run. Defaults are what measured best on the default target at small budgets (docs/drafters.md)."""

    RETIRED: ClassVar[Mapping[str, str]] = {"cache": "Each epoch computes the target again."}

    target: str = setting("default", "default, hub id, folder or .gguf.")
    shards: tuple[Path, ...] = setting((), "Files or folders of token shards.", shown="needed")
    output: Path = setting(Path(), "The folder of the run.", shown="needed")
    start_from: Path | None = setting(None, "Continue from this drafter instead of fresh tensors.")
    seed: int = setting(0, "Of what is drawn.")
    dtype: Literal["bf16", "float32"] = setting("bf16", "Of the drafter in training.")
    execution: Literal["torch", "int8"] = setting(
        "torch", "Of the target: torch in `dtype`, or the kernels, faster on CPUs."
    )
    threads: int = setting(1, "Of torch on a CPU; 0: its choice.", ge=0)
    checkpoint_minutes: float = setting(3.0, "Between checkpoints.", ge=0)
    report_steps: int = setting(10, "Between points of the curves.", ge=1)
    drafter: DrafterSettings = DrafterSettings()
    blocks: BlockSettings = BlockSettings()
    losses: LossSettings = LossSettings()
    optimiser: OptimiserSettings = OptimiserSettings()
    budget: BudgetSettings = BudgetSettings()

    def check(self) -> None:
        from moa_shared.drafter.kinds import KINDS

        needed = {"shards": self.shards, "output": self.output != Path(), "budget.tokens": self.budget.tokens}
        if missing := [name for name, given in needed.items() if not given]:
            raise ValueError(f"{missing[0]} is missing")
        self.drafter.check()
        blocks = self.blocks
        if blocks.own_text and not blocks.bounded:
            raise ValueError("blocks.own_text needs blocks.bounded = true")
        if blocks.longest < blocks.shortest:
            raise ValueError(f"blocks.longest ({blocks.longest}) is below blocks.shortest ({blocks.shortest})")
        if blocks.own_text and not KINDS[self.drafter.kind].shares_memory:
            raise ValueError(f"blocks.own_text is for drafters that share their memory, not for {self.drafter.kind}")

    def json_values(self) -> dict[str, Any]:
        return super().json_values() | {name: getattr(self, name).json_values() for name in _TABLES}

    def identity(self) -> dict[str, Any]:
        """What a run must have in common with one that it resumes: the settings that differ from their defaults, and
        the version of the defaults. So a new setting that is off by default does not keep a run from its state.
        """
        chosen: dict[str, Any] = {"defaults": DEFAULTS_VERSION}
        for (name, usual), value in zip(type(self)().json_values().items(), self.json_values().values(), strict=True):
            if name in _TABLES:
                value, usual = {key: each for key, each in value.items() if each != usual[key]}, {}
            if name not in _NOT_IDENTITY and value != usual:
                chosen[name] = value
        return chosen


_TABLES: Mapping[str, type[SettingsBase]] = {
    "drafter": DrafterSettings,
    "blocks": BlockSettings,
    "losses": LossSettings,
    "optimiser": OptimiserSettings,
    "budget": BudgetSettings,
}


def load_fit_settings(path: Path) -> FitSettings:
    """Reads a configuration; relative paths in it are relative to its folder."""
    if not path.is_file():
        raise NotFoundError(f"There is no configuration {path}.", hint="Check the path; training/configs has examples.")
    import tomllib

    import yaml

    try:
        text = path.read_text(encoding="utf-8-sig")
        content = yaml.safe_load(text) if path.suffix in (".yaml", ".yml") else tomllib.loads(text)
    except (tomllib.TOMLDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration {path} cannot be read: {error}.", hint="Correct that line.") from None
    if not isinstance(content, dict):
        raise ConfigError(f"The configuration {path} holds no settings.", hint="Write at least shards, output, budget.")
    return fit_settings(content, path)


def fit_settings(content: Mapping[str, Any], path: Path) -> FitSettings:
    """The settings of a configuration's content."""
    tables = {name: content.get(name, {}) for name in _TABLES}
    if wrong := [name for name, table in tables.items() if not isinstance(table, dict)]:
        raise ConfigError(f"{wrong[0]} in {path} is not a table.", hint="training/configs has examples.")
    whole = read_table(FitSettings, "", {name: content[name] for name in content if name not in _TABLES}, path)
    parts: dict[str, Any] = {name: read_table(cls, name, tables[name], path) for name, cls in _TABLES.items()}
    settings = replace(whole, **parts)
    try:
        settings.check()
    except ValueError as error:
        raise ConfigError(f"In {path}: {error}.", hint="training/configs has examples.") from None
    return settings


_RAY = "One process does the work of a machine: give each its own share (docs/drafters.md#on-several-machines)."
Execution = Literal["int8", "float32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(SettingsBase):
    RETIRED: ClassVar[Mapping[str, str]] = {
        "ray": _RAY,
        "workers": _RAY,
        "part_answers": "Answers are kept after each --slots of them.",
    }

    target: str = setting("default", "default, hub id, folder or .gguf.")
    max_tokens: int = setting(1024, "Where a row is cut.", ge=2)
    rewrite: bool = setting(False, "The target writes its own answers; an existing shard is continued.")
    prompt_tokens: int = setting(192, "Longer ones are left out.", ge=1)
    answer_tokens: int = setting(224, "Where answers are cut.", ge=1)
    sampled_share: float = setting(0.5, "Of answers; the rest is greedy.", ge=0, le=1)
    temperature: float = setting(0.8, "Of sampled answers.", ge=0.01)
    # 96 serve a CPU, several hundred a GPU
    slots: int = setting(96, "Answers written, and kept, at once.", ge=1)
    limit: int | None = setting(None, "The most answers written.", shown="any number", ge=1)
    seed: int = setting(0, "Of what is drawn.")
    threads: int = setting(1, "Of torch; 0: its choice.", ge=0)


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(SettingsBase):
    RETIRED: ClassVar[Mapping[str, str]] = {
        "ray": _RAY,
        "workers": _RAY,
        "more_nodes": "Evaluate once for each size of the tree.",
        "copies": "moa-bench single measures drafts with copies, as they are served.",
        "card": "The command prints its tables in Markdown.",
    }

    target: str = setting("default", "default, hub id, folder or .gguf.")
    limit: int | None = setting(None, "Questions of each category.", shown="all", ge=1)
    answer_tokens: int = setting(128, "Where the target's answers are cut.", ge=2)
    prompt_tokens: int = setting(1024, "Longer ones are left out.", ge=1)
    chain: int = setting(5, "Drafts of the chain.", ge=1)
    nodes: int = setting(24, "Of the tree.", ge=1)
    depth: int = setting(5, "Of the tree.", ge=1)
    breadth: int = setting(6, "Of the tree.", ge=1)
    standalone: int = setting(96, "Standalone tokens after each cut; 0: none.", ge=0)
    unguarded: bool = setting(False, "Allow repeated 6-grams in standalone text (the client forbids them).")
    # a result needs a whole answer, so this is the most expensive measure
    task_tokens: int = setting(
        0, "Check results of answers cut and continued to so many tokens; GSM8K needs 320.", shown="not checked", ge=0
    )
    execution: Execution = setting("int8", "The arithmetic of the target, as of moa-server.")
    drafter_weights: Literal["int8", "float32"] = setting(
        "int8", "Of both halves of the drafter: as devices compute, or a reference."
    )
    temperature: str = setting(
        "0", "Of the target's answers; own: all settings that the model's files name.", "T|own", shown="0: greedy"
    )
    threads: int = setting(1, "Of torch; 0: its choice.", ge=0)


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions(SettingsBase):
    output: Path | None = setting(
        None, "confidence.json.", "FILE", shown="none; of a companion a file of the cache, where this machine finds it"
    )
    target: str = setting("default", "default, hub id, folder or .gguf.")
    limit: int | None = setting(None, "Questions of each category.", shown="all", ge=1)
    answer_tokens: int = setting(128, "Where the target's answers are cut.", ge=2)
    execution: Execution = setting("int8", "The arithmetic of the target, as of moa-server.")
    temperature: str = setting(
        "own",
        "Of the target's answers, 0: greedy; own: all settings that the model's files name.",
        "T|own",
    )
    thin: bool = setting(False, "With the few memory rows that a device gets while it drafts nothing.")


@dataclass(frozen=True, kw_only=True)
class NgramOptions(SettingsBase):
    target: str = setting("default", "default, hub id, folder or .gguf.")
    least_count: int = setting(4, "Of a context, to be kept.", ge=1)
    least_chance: float = setting(0.1, "Of a token, to be kept.", ge=0.01, le=1)


@dataclass(frozen=True, kw_only=True)
class CompareOptions(SettingsBase):
    RETIRED: ClassVar[Mapping[str, str]] = {"share_picture": "--picture draws it."}

    picture: Path | None = setting(
        None, "Standalone quality by the share of the answer that the server gave, as a PNG.", "FILE", shown="none"
    )
    forward_ms: float = setting(49.0, "Of a target forward.", ge=0.001)
    node_ms: float = setting(0.85, "Of each draft node in it.", ge=0)
