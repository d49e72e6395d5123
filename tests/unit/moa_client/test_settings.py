from __future__ import annotations

import pytest
from inline_snapshot import snapshot
from moa_client.settings import SECTION, ClientSettings
from moa_shared.errors import ConfigError
from moa_shared.programs.config import load_settings
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.settings import Sampling

from tests.support.messages import raises


def load(**flags: object) -> ClientSettings:
    return load_settings(ClientSettings, SECTION, flags, environment={})


def test_settings_become_an_answers_settings() -> None:
    settings = load(temperature=0.5, top_k=3, top_p=0.9, seed=4, max_tokens=7, stop=("x",))
    assert settings.options.settings() == AnswerSettings(Sampling(0.5, 3, 0.9, 4), 7, ("x",))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "server",
            "local host",
            snapshot(
                "--server is 'local host': expected HOST:PORT, such as 127.0.0.1:50051, or a name of `moa-client servers list`. See --help for the values allowed."
            ),
        ),
        (
            "server",
            "localhost:99999",
            snapshot(
                "--server is 'localhost:99999': expected HOST:PORT, such as 127.0.0.1:50051. See --help for the values allowed."
            ),
        ),
        (
            "allowed_origins",
            ("https://app.example/",),
            snapshot(
                "--allowed-origin is ('https://app.example/',): expected origins such as https://app.example or http://localhost:3000. See --help for the values allowed."
            ),
        ),
        (
            "allowed_origins",
            ("https://app.example", "app.example"),
            snapshot(
                "--allowed-origin is ('https://app.example', 'app.example'): expected origins such as https://app.example or http://localhost:3000. See --help for the values allowed."
            ),
        ),
        (
            "endpoint_port",
            65536,
            snapshot("--endpoint-port is 65536: input should be less than 65536. See --help for the values allowed."),
        ),
        (
            "mode",
            "bush",
            snapshot("--mode is 'bush': input should be 'chain' or 'tree'. See --help for the values allowed."),
        ),
        (
            "temperature",
            -1,
            snapshot(
                "--temperature is -1: input should be greater than or equal to 0. See --help for the values allowed."
            ),
        ),
        ("top_p", 0, snapshot("--top-p is 0: input should be greater than 0. See --help for the values allowed.")),
        (
            "seed",
            2**64,
            snapshot(
                "--seed is 18446744073709551616: input should be less than 18446744073709551616. See --help for the values allowed."
            ),
        ),
        (
            "stop",
            ("",),
            snapshot(
                "--stop is ('',): expected at most 16 stop strings of 1 to 64 characters. See --help for the values allowed."
            ),
        ),
        (
            "codec",
            "zip",
            snapshot("--codec is 'zip': input should be 'bf16', 'int8' or 'int4'. See --help for the values allowed."),
        ),
        (
            "depth",
            0,
            snapshot("--depth is 0: input should be greater than or equal to 1. See --help for the values allowed."),
        ),
        (
            "cores",
            "1-",
            snapshot("--cores is '1-': expected cores such as 0 or 0,2-3. See --help for the values allowed."),
        ),
        (
            "connect_seconds",
            0,
            snapshot("--connect-seconds is 0: input should be greater than 0. See --help for the values allowed."),
        ),
    ],
)
def test_bad_values_are_named(name: str, value: object, message: str) -> None:
    with raises(ConfigError, message):
        load(**{name: value})
