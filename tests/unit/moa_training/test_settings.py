import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from moa_shared.errors import ConfigError
from moa_training.settings import DEFAULTS_VERSION, FitSettings, LossSettings, load_fit_settings

from tests.support.messages import raises

MINIMAL = 'shards = ["a"]\noutput = "out"\n[budget]\ntokens = 10\n'
LOOK = "training/configs has examples."


def load(folder: Path, text: str, name: str = "fit.toml", encoding: str = "utf-8") -> FitSettings:
    (folder / name).write_text(text, encoding=encoding)
    return load_fit_settings(folder / name)


def test_toml_and_yaml_say_the_same_and_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    settings = load(tmp_path, MINIMAL, encoding="utf-8-sig")  # some editors begin with a mark
    assert (settings.output, settings.shards) == (tmp_path / "out", (tmp_path / "a",))
    assert settings == load(tmp_path, "shards: [a]\noutput: out\nbudget: {tokens: 10}\n", "fit.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "shards = [",
            "The configuration TMP/fit.toml cannot be read: Invalid value (at end of document). Correct that line.",
        ),
        ('output = "out"\n[budget]\ntokens = 1\n', f"shards in TMP/fit.toml: field required. {LOOK}"),
        (MINIMAL + "rounds = 3\n", f"budget.rounds in TMP/fit.toml is 3: is not a setting. {LOOK}"),
        (
            MINIMAL + "[drafter]\nreused_layers = -1\n",
            f"drafter.reused_layers in TMP/fit.toml is -1: expected greater than or equal to 0. {LOOK}",
        ),
        (
            MINIMAL + "[blocks]\nshortest = 9\nlongest = 4\n",
            f"In TMP/fit.toml: blocks.longest (4) is below blocks.shortest (9). {LOOK}",
        ),
        (
            MINIMAL + '[drafter]\nkind = "eagle2"\nreused_layers = 1\n',
            f"In TMP/fit.toml: drafter.reused_layers is for moa drafters only, not for eagle2. {LOOK}",
        ),
        (
            MINIMAL + "[cache]\ngigabytes = 1\n",
            "[cache] in TMP/fit.toml is not a setting any more. Each epoch computes the target again. Leave it out: "
            "moa 0.2.0 was the last that had it.",
        ),
        (MINIMAL.replace('["a"]', "[]"), f"shards in TMP/fit.toml is []: tuple should have at least 1 item, not 0. {LOOK}"),
    ],
)  # fmt: skip
def test_bad_configurations_name_the_setting(tmp_path: Path, text: str, message: str) -> None:
    with raises(ConfigError, message):
        load(tmp_path, text)


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
    """States keep only what differs from the defaults: change one, and DEFAULTS_VERSION and the digest with it."""
    defaults = settings(FitSettings).model_dump(mode="json", exclude={"shards", "output", "budget"})
    digest = hashlib.sha256(json.dumps(defaults, sort_keys=True).encode()).hexdigest()[:16]
    assert (DEFAULTS_VERSION, digest) == (1, "d96c2ef6e7f0c3a6")
