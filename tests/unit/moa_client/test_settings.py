from __future__ import annotations

from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_client.settings import SECTION, ClientSettings
from moa_shared.errors import ConfigError
from moa_shared.programs.config import load_settings
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.settings import CHAT_DEFAULTS, Sampling, SamplingDefaults

from tests.support.messages import raises


def load(**flags: object) -> ClientSettings:
    return load_settings(ClientSettings, SECTION, flags, environment={})


def test_settings_become_an_answers_settings() -> None:
    settings = load(temperature=0.5, top_k=3, top_p=0.9, seed=4, max_tokens=7, stop=("x",))
    assert settings.options.settings() == AnswerSettings(Sampling(0.5, 3, 0.9, 4), 7, ("x",), loop_guard=True)


def test_what_is_not_set_is_left_to_the_model() -> None:
    open_ = load().options
    assert (open_.temperature, open_.top_p, open_.top_k, open_.seed) == (None,) * 4
    decided = open_.decided(SamplingDefaults(temperature=0.6, top_k=20), CHAT_DEFAULTS, seed=9)
    assert decided.settings() == AnswerSettings(Sampling(0.6, 20, 0.95, 9), 2048, loop_guard=True)
    assert load(temperature=0).options.decided(CHAT_DEFAULTS).settings().sampling.greedy


@pytest.mark.parametrize("value", [("calculator/add", "add"), ("add",)])
def test_a_tool_without_its_server_is_refused(value: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="expected SERVER/TOOL, such as calculator/add, or all"):
        load(mcp_allow=value)


@pytest.mark.parametrize("name", ClientSettings.RETIRED)
def test_what_is_gone_is_refused_by_name_wherever_it_is_given(name: str, tmp_path: Path) -> None:
    file = tmp_path / "moa.toml"
    file.write_text(f"[client]\n{name} = 1\n")
    for flags, path, environment, label in (
        ({name: "1"}, None, {}, f"--{name.replace('_', '-')}"),
        ({}, file, {}, f"{name} in \\[client\\]"),
        ({}, None, {f"MOA_CLIENT_{name.upper()}": "1"}, f"MOA_CLIENT_{name.upper()}"),
    ):
        with pytest.raises(ConfigError, match=f"{label}.* is not a setting any more.*moa 0.2.0 was the last"):
            load_settings(ClientSettings, SECTION, flags, path, environment)


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
            "drafting",
            "all",
            "--drafting is 'all': expected 'auto', 'server', 'device' or 'off'. See --help for the values allowed.",
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
    ],
)
def test_bad_values_are_named(name: str, value: object, message: str) -> None:
    with raises(ConfigError, message):
        load(**{name: value})
