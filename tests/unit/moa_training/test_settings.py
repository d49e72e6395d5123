from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import ConfigError, NotFoundError
from moa_training.settings import DEFAULTS_VERSION, FitSettings, LossSettings, load_fit_settings

from tests.support.messages import raises

MINIMAL = 'shards = ["a"]\noutput = "out"\n[budget]\ntokens = 10\n'


def load(folder: Path, text: str, name: str = "fit.toml") -> object:
    (folder / name).write_text(text)
    return load_fit_settings(folder / name)


def test_paths_are_relative_to_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "fit.toml").write_text(MINIMAL)
    settings = load_fit_settings(tmp_path / "fit.toml")
    assert settings.output == tmp_path / "out"
    assert settings.shards == (tmp_path / "a",)
    assert settings.budget.tokens == 10


def test_it_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "fit.toml").write_text(MINIMAL, encoding="utf-8-sig")
    assert load_fit_settings(tmp_path / "fit.toml").budget.tokens == 10


def test_yaml_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "fit.toml").write_text(MINIMAL)
    text = "shards: [a]\noutput: out\nbudget: {tokens: 10}\n"
    assert load(tmp_path, text, "fit.yaml") == load_fit_settings(tmp_path / "fit.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "shards = [",
            snapshot(
                "The configuration TMP/fit.toml cannot be read: Invalid value (at end of document). Correct that line."
            ),
        ),
        (
            'output = "out"\n[budget]\ntokens = 1\n',
            snapshot("shards in TMP/fit.toml: field required. training/configs has examples."),
        ),
        (
            MINIMAL + "rounds = 3\n",
            snapshot("budget.rounds in TMP/fit.toml is 3: is not a setting. training/configs has examples."),
        ),
        (
            MINIMAL + "[drafter]\nreused_layers = -1\n",
            snapshot(
                "drafter.reused_layers in TMP/fit.toml is -1: expected at least 0. training/configs has examples."
            ),
        ),
        (
            MINIMAL + "[blocks]\nshortest = 9\nlongest = 4\n",
            snapshot(
                "In TMP/fit.toml: blocks.longest (4) is below blocks.shortest (9). training/configs has examples."
            ),
        ),
        (
            MINIMAL + '[optimiser]\nschedule = "steps"\n',
            snapshot(
                "optimiser.schedule in TMP/fit.toml is 'steps': expected 'cosine' or 'authors'. training/configs has examples."
            ),
        ),
        (
            MINIMAL + "[cache]\ngigabytes = 1\n",
            snapshot(
                "[cache] in TMP/fit.toml is not a setting any more. Each epoch computes the target again. Leave it out: moa 0.2.0 was the last that had it."
            ),
        ),
        (
            MINIMAL.replace("10", "0"),
            snapshot("budget.tokens in TMP/fit.toml is 0: expected more than 0. training/configs has examples."),
        ),
        (
            MINIMAL.replace('["a"]', "[]"),
            snapshot(
                "shards in TMP/fit.toml is []: tuple should have at least 1 item, not 0. training/configs has examples."
            ),
        ),
    ],
)
def test_bad_configurations_name_the_setting(tmp_path: Path, text: str, message: str) -> None:
    with raises(ConfigError, message):
        load(tmp_path, text)


def test_a_list_or_nothing_is_no_configuration(tmp_path: Path) -> None:
    with raises(
        ConfigError,
        snapshot("The configuration TMP/fit.yaml holds no settings. Write at least shards, output, budget."),
    ):
        load(tmp_path, "- a\n", "fit.yaml")
    with pytest.raises(NotFoundError):
        load_fit_settings(tmp_path / "none.toml")


class LaterLosses(LossSettings):
    """As a later version has them: with one more."""

    further: float = 0.0


class LaterSettings(FitSettings):
    another: bool = False
    losses: LossSettings = LaterLosses()


def settings(cls: type[FitSettings], **values: Any) -> FitSettings:
    return cls.model_validate({"shards": ["a"], "output": "out", "budget": {"tokens": 10}, **values})


@pytest.mark.parametrize("values", [{}, {"seed": 3, "losses": {"feature": 0.1}}])
def test_a_new_setting_that_is_off_leaves_a_run_what_it_was(values: dict[str, Any]) -> None:
    later = dict(values)
    if "losses" in values:
        later["losses"] = LaterLosses(**values["losses"])
    before = settings(FitSettings, **values).identity()
    assert settings(LaterSettings, **later).identity() == before
    assert settings(LaterSettings, **{**later, "another": True}).identity() != before
    assert settings(LaterSettings, **{**later, "losses": LaterLosses(further=0.5)}).identity() != before


def test_what_a_run_writes_and_how_long_it_takes_are_no_part_of_it() -> None:
    before = settings(FitSettings).identity()
    assert settings(FitSettings, output="else", threads=2, budget={"tokens": 99}).identity() == before
    assert settings(FitSettings, losses={"feature": 1.0}).identity() == before  # its default, written out
    assert settings(FitSettings, losses={"feature": 0.9}).identity() != before


def test_a_changed_default_raises_the_version() -> None:
    """States keep only what differs from the defaults: change one below, and DEFAULTS_VERSION with it."""
    defaults = settings(FitSettings).model_dump(mode="json", exclude={"shards", "output", "budget"})
    pinned: dict[str, Any] = {
        "target": "default",
        "start_from": None,
        "seed": 0,
        "dtype": "bf16",
        "execution": "torch",
        "threads": 1,
        "checkpoint_minutes": 3.0,
        "report_steps": 10,
        "drafter": {
            "kind": "moa",
            "own_layers": 4,
            "state_entries": None,
            "eagle31": False,
            "block_size": 8,
            "mask_token": None,
            "eagle_noise": 0.2,
            "lsa": True,
            "ca": True,
            "norms_near_zero": False,
            "unscaled_memory_rope": False,
            "reused_layers": 0,
            "draft_vocab": 16384,
            "sa_kv_heads": None,
            "sa_mlp": None,
            "ca_kv_heads": None,
            "ca_mlp": None,
            "lsa_heads": None,
            "lsa_kv_heads": None,
            "lsa_mlp": 512,
            "output_norm": True,
            "warm_start": True,
            "memory_of": None,
        },
        "blocks": {
            "shortest": 5,
            "longest": 12,
            "bounded": True,
            "staircase": True,
            "memory_dropout": 0.1,
            "own_text": 0.0,
            "prompts": True,
            "depth_decay": 0.9,
            "anchors": 128,
        },
        "losses": {
            "cross_entropy": 1.0,
            "feature": 1.0,
            "count_starts": False,
            "inject_true_state": False,
            "steps": 7,
            "step_decay": 0.8,
            "guess_decay": 4.0,
        },
        "optimiser": {
            "learning_rate": 1.5e-3,
            "final_learning_rate": 3e-5,
            "warmup_steps": 50,
            "schedule": "cosine",
            "beta1": 0.9,
            "beta2": 0.95,
            "clip": 1.0,
            "batch_rows": 2,
            "row_tokens": 512,
            "memory_gradient_share": 0.25,
        },
    }
    assert (DEFAULTS_VERSION, defaults) == (1, pinned)
