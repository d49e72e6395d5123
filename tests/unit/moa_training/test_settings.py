from __future__ import annotations

from pathlib import Path

import pytest
from moa_shared.errors import ConfigError, NotFoundError
from moa_training.settings import load_fit_settings

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


def test_yaml_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "fit.toml").write_text(MINIMAL)
    text = "shards: [a]\noutput: out\nbudget: {tokens: 10}\n"
    assert load(tmp_path, text, "fit.yaml") == load_fit_settings(tmp_path / "fit.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shards = [", "cannot be read"),
        ('output = "out"\n[budget]\ntokens = 1\n', "shards"),
        (MINIMAL + "rounds = 3\n", "budget.rounds .* is not a setting"),
        (MINIMAL + "[drafter]\nreused_layers = -1\n", "drafter.reused_layers"),
        (MINIMAL + "[blocks]\nshortest = 9\nlongest = 4\n", "blocks.longest"),
        (MINIMAL + '[optimiser]\nschedule = "steps"\n', "optimiser.schedule"),
        (MINIMAL.replace("10", "0"), "budget.tokens"),
        (MINIMAL.replace('["a"]', "[]"), "shards"),
    ],
)
def test_bad_configurations_name_the_setting(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_a_list_or_nothing_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no settings"):
        load(tmp_path, "- a\n", "fit.yaml")
    with pytest.raises(NotFoundError):
        load_fit_settings(tmp_path / "none.toml")
