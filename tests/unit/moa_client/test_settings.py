from __future__ import annotations

import pytest
from moa_client.settings import SECTION, ClientSettings
from moa_shared.errors import ConfigError
from moa_shared.programs.config import load_settings
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.coupling import Sampling


def load(**flags: object) -> ClientSettings:
    return load_settings(ClientSettings, SECTION, flags, environment={})


def test_settings_become_an_answers_settings() -> None:
    settings = load(temperature=0.5, top_k=3, top_p=0.9, seed=4, max_tokens=7, stop=("x",))
    assert settings.answer == AnswerSettings(Sampling(0.5, 3, 0.9, 4), 7, ("x",))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("server", "localhost", "--server is 'localhost': expected HOST:PORT"),
        ("server", "localhost:99999", "expected HOST:PORT"),
        ("mode", "bush", "--mode is 'bush': input should be 'chain' or 'tree'"),
        ("temperature", -1, "--temperature is -1"),
        ("top_p", 0, "--top-p is 0"),
        ("seed", 2**64, "--seed is 18446744073709551616"),
        ("stop", ("",), "stop strings of 1 to 64 characters"),
        ("codec", "zip", "--codec is 'zip': input should be 'bf16', 'int8' or 'int4'"),
        ("depth", 0, "--depth is 0"),
        ("cores", "1-", "--cores is '1-': expected cores such as 0 or 0,2-3"),
        ("connect_seconds", 0, "--connect-seconds is 0"),
    ],
)
def test_bad_values_are_named(name: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(**{name: value})
