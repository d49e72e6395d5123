import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from moa_shared.errors import ConfigError
from moa_shared.programs.config import setting
from moa_training.settings import DEFAULTS_VERSION, FitSettings, fit_settings, load_fit_settings

MINIMAL: dict[str, Any] = {"shards": ["a"], "output": "out", "budget": {"tokens": 10}}
TEXT = 'shards = ["a"]\noutput = "out"\n[budget]\ntokens = 10\n'


def fit(**changes: Any) -> FitSettings:
    return fit_settings({**MINIMAL, **changes}, Path("fit.toml"))


def test_toml_and_yaml_say_the_same_and_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "fit.toml").write_text(TEXT, encoding="utf-8-sig")  # some editors begin with a mark
    (tmp_path / "fit.yaml").write_text("shards: [a]\noutput: out\nbudget: {tokens: 10}\n")
    settings = load_fit_settings(tmp_path / "fit.toml")
    assert (settings.output, settings.shards) == (tmp_path / "out", (tmp_path / "a",))
    assert settings == load_fit_settings(tmp_path / "fit.yaml")
    (tmp_path / "fit.toml").write_text("shards = [")
    with pytest.raises(ConfigError, match=r"fit.toml cannot be read: Invalid value"):
        load_fit_settings(tmp_path / "fit.toml")


@pytest.mark.parametrize(("changes", "message"), [
    ({"shards": []}, "In fit.toml: shards is missing"),
    ({"budget": {"tokens": 10, "rounds": 3}}, r"rounds in \[budget\] of fit.toml is not a setting"),
    ({"drafter": {"reused_layers": -1}}, r"reused_layers in \[drafter\] of fit.toml is -1: expected at least 0"),
    ({"blocks": 3}, "blocks in fit.toml is not a table"),
    ({"blocks": {"shortest": 9, "longest": 4}}, r"blocks.longest \(4\) is below blocks.shortest \(9\)"),
    ({"drafter": {"kind": "eagle2", "reused_layers": 1}}, "drafter.reused_layers is for moa drafters only"),
    ({"drafter": {"kind": "lookup"}}, "drafter.kind is lookup, expected one of dflash, moa, eagle3, eagle2"),
    ({"drafter": {"norms_near_zero": True}}, "norms_near_zero in .* is not a setting any more. It repeated what"),
    ({"cache": {"gigabytes": 1}}, "cache in fit.toml is not a setting any more. Each epoch computes"),
])  # fmt: skip
def test_bad_configurations_name_the_setting(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fit(**changes)


@dataclass(frozen=True, kw_only=True)
class LaterSettings(FitSettings):
    """As a later version has them: with one more."""

    another: bool = setting(False, "Off.")


def test_what_a_run_writes_how_long_it_takes_and_what_is_off_are_no_part_of_it() -> None:
    before = fit().identity()
    assert fit(output="else", threads=2, budget={"tokens": 99}).identity() == before
    assert fit(losses={"feature": 1.0}).identity() == before  # its default, written out
    assert fit(losses={"feature": 0.9}).identity() == {**before, "losses": {"feature": 0.9}}
    assert LaterSettings(seed=3).identity() == FitSettings(seed=3).identity() != FitSettings().identity()
    assert LaterSettings(seed=3, another=True).identity() != FitSettings(seed=3).identity()


def test_a_changed_default_raises_the_version() -> None:
    """States keep only what differs from the defaults: change one, and DEFAULTS_VERSION and the digest with it."""
    defaults = {key: value for key, value in fit().json_values().items() if key not in MINIMAL}
    digest = hashlib.sha256(json.dumps(defaults, sort_keys=True).encode()).hexdigest()[:16]
    assert (DEFAULTS_VERSION, digest) == (1, "8c9790d0eae4fb76")
