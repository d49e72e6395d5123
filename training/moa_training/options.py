"""Options of the commands of `moa-train`: each is named once, with its default, its limits and its help.

Light: each --help needs it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from moa_shared.programs.config import SettingsBase, setting

_RAY = "One process does the work of a machine: give each its own share (docs/drafters.md#on-several-machines)."
Execution = Literal["int8", "float32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class PrepareOptions(SettingsBase):
    """How conversations become a token shard."""

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
    """What is measured of a drafter."""

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
    drafter_weights: Literal["int8", "int4", "float32"] = setting(
        "int8", "Of both halves of the drafter: as devices compute, or a reference."
    )
    temperature: str = setting(
        "0", "Of the target's answers; own: all settings that the model's files name.", "T|own", shown="0: greedy"
    )
    threads: int = setting(1, "Of torch; 0: its choice.", ge=0)


@dataclass(frozen=True, kw_only=True)
class CalibrationOptions(SettingsBase):
    """What is measured of a drafter's standalone text."""

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
    """What goes into a table of n-grams."""

    target: str = setting("default", "default, hub id, folder or .gguf.")
    least_count: int = setting(4, "Of a context, to be kept.", ge=1)
    least_chance: float = setting(0.1, "Of a token, to be kept.", ge=0.01, le=1)


@dataclass(frozen=True, kw_only=True)
class CompareOptions(SettingsBase):
    """How evaluations are put side by side."""

    RETIRED: ClassVar[Mapping[str, str]] = {"share_picture": "--picture draws it."}

    picture: Path | None = setting(
        None, "Standalone quality by the share of the answer that the server gave, as a PNG.", "FILE", shown="none"
    )
    forward_ms: float = setting(49.0, "Of a target forward.", ge=0.001)
    node_ms: float = setting(0.85, "Of each draft node in it.", ge=0)
