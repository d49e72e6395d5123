from __future__ import annotations

import pytest
from inline_snapshot import snapshot
from moa_client.settings import SECTION, ClientSettings
from moa_shared.errors import ConfigError
from moa_shared.programs.config import load_settings
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.defaults import CHAT_DEFAULTS, SamplingDefaults
from moa_shared.sampling.settings import Sampling

from tests.support.messages import raises


def load(**flags: object) -> ClientSettings:
    return load_settings(ClientSettings, SECTION, flags, environment={})


def test_settings_become_an_answers_settings() -> None:
    settings = load(temperature=0.5, top_k=3, top_p=0.9, seed=4, max_tokens=7, stop=("x",))
    assert settings.options.settings() == AnswerSettings(Sampling(0.5, 3, 0.9, 4), 7, ("x",), loop_guard=True)


def test_what_is_not_set_is_left_to_the_model() -> None:
    open_ = load().options
    assert (open_.temperature, open_.top_p, open_.min_p, open_.repeat_penalty, open_.seed) == (None,) * 5
    decided = open_.decided(SamplingDefaults(temperature=0.6, top_k=20), CHAT_DEFAULTS, seed=9)
    assert decided.settings() == AnswerSettings(Sampling(0.6, 20, 0.95, 9), 2048, loop_guard=True)
    assert load(temperature=0).options.decided(CHAT_DEFAULTS).settings().sampling.greedy


def test_every_option_of_sampling_has_its_effect() -> None:
    values = {
        "min_p": 0.1,
        "repeat_penalty": 1.2,
        "repeat_last_n": -1,
        "presence_penalty": 1.0,
        "frequency_penalty": -2.0,
    }
    options = load(**values, logit_bias=("42=-5", "7+1.5", "9-100"), loop_guard=False).options
    assert {name: getattr(options, name) for name in values} == values
    assert options.logit_bias == ((7, 1.5), (9, -100.0), (42, -5.0))
    assert not options.settings().loop_guard


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("logit_bias", ("hello=1",), "expected ID=BIAS, a token's id and -100 to 100, such as 42=-5"),
        ("logit_bias", ("42=101",), "expected ID=BIAS"),
        ("logit_bias", ("42",), "expected ID=BIAS"),
        ("mcp_allow", ("calculator/add", "add"), "expected SERVER/TOOL, such as calculator/add, or all"),
        ("logit_bias", ("42=1", "42=2"), "it names a token twice"),
        ("repeat_penalty", 0, "expected 0.01 to 100; 1 is off"),
        ("repeat_penalty", float("nan"), "expected 0.01 to 100; 1 is off"),
        ("repeat_last_n", -2, "at least -1"),
        ("presence_penalty", 2.1, "at most 2"),
        ("min_p", 1.5, "at most 1"),
    ],
)
def test_an_option_out_of_its_range_is_refused(name: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(**{name: value})


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
        *(
            (
                "server",
                bare,
                f"--server is {bare!r}: expected HOST:PORT, with an IPv6 address in brackets, such as [::1]:50051. "
                "See --help for the values allowed.",
            )
            for bare in ("::1", "gpu,fe80::1:50051", "[::1:5")
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
            snapshot("--endpoint-port is 65536: expected less than 65536. See --help for the values allowed."),
        ),
        (
            "mode",
            "bush",
            snapshot("--mode is 'bush': expected 'chain' or 'tree'. See --help for the values allowed."),
        ),
        (
            "temperature",
            -1,
            snapshot("--temperature is -1: expected at least 0. See --help for the values allowed."),
        ),
        ("top_p", 0, snapshot("--top-p is 0: expected more than 0. See --help for the values allowed.")),
        (
            "seed",
            2**64,
            snapshot(
                "--seed is 18446744073709551616: expected less than 18446744073709551616. See --help for the values allowed."
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
            snapshot("--codec is 'zip': expected 'bf16', 'int8' or 'int4'. See --help for the values allowed."),
        ),
        (
            "depth",
            0,
            snapshot("--depth is 0: expected at least 1. See --help for the values allowed."),
        ),
        (
            "cores",
            "1-",
            snapshot("--cores is '1-': expected cores such as 0 or 0,2-3. See --help for the values allowed."),
        ),
        (
            "connect_seconds",
            0,
            snapshot("--connect-seconds is 0: expected more than 0. See --help for the values allowed."),
        ),
    ],
)
def test_bad_values_are_named(name: str, value: object, message: str) -> None:
    with raises(ConfigError, message):
        load(**{name: value})
