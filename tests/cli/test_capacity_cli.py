"""`moa-server capacity` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from inline_snapshot import snapshot
from moa_server.capacity import speed
from moa_server.cli import cli
from moa_shared.errors import MoaError

from tests.support.tiny_models import SMALL, save_tiny_model


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))


def capacity(*words: object) -> str:
    result = CliRunner().invoke(cli, ["capacity", *map(str, words)])
    if isinstance(result.exception, MoaError):
        return str(result.exception)
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.torch
def test_a_plan_for_people_and_for_programs(tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "tiny", seed=1, **SMALL, num_hidden_layers=2, max_position_embeddings=6000)
    options = [model, "--drafter", "none", "--execution", "float32"]
    assert capacity(*options, "--memory", 2 * 10**8) == snapshot("""\
tiny at float32
before anybody asks  150.1 MB: weights 86.9 kB, drafters 0 bytes, the program 150.0 MB
keys and values      37.4 MB

tokens  a session takes  sessions that answer at once
  1024         278.5 kB                           134
  4096           1.1 MB                            35
  6000           1.6 MB                            24

Idle sessions keep only their text; the server holds 1024 in all.
""")
    told = json.loads(capacity(*options, "--kv-bytes", 10**9, "--measure", "--json"))
    assert told["measured"].pop("step_ms") > 0
    assert told["measured"].pop("row_ms") >= 0
    assert told["measured"].pop("read_ms") > 0
    assert told["measured"].pop("users_without_prompts") >= told["measured"].pop("users") > 0
    assert told == snapshot(
        {
            "target": "tiny",
            "level": "float32",
            "weights_bytes": 86912,
            "drafters_bytes": 0,
            "process_bytes": 150000000,
            "kv_bytes": 1000000000,
            "max_sessions": 1024,
            "sessions": [
                {"tokens": 1024, "bytes_each": 278528, "that_fit": 3590},
                {"tokens": 4096, "bytes_each": 1064960, "that_fit": 939},
                {"tokens": 6000, "bytes_each": 1556480, "that_fit": 642},
            ],
            "measured": {"tokens_per_s": 5.0, "prompt_tokens": 2.0},
        }
    )


def test_a_speed_is_estimated_where_kernels_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "memory_bytes_per_s", lambda _: 8e6)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
    }
    model = save_tiny_model(tmp_path / "tiny", seed=1, **{**SMALL, **sizes}, max_position_embeddings=1024)
    options = [model, "--drafter", "none", "--execution", "int8", "--memory", 10**9]
    assert capacity(*options).partition("in all.\n")[2] == snapshot("""\

Speed of one user here: at most about 15.4 tokens/s; a plain step reads 519.1 kB, and memory here gives 0.008 GB/s (an estimate).
--measure loads the model and measures.
""")
    assert json.loads(capacity(*options, "--json"))["estimated"] == snapshot(
        {"step_ms": 64.89, "step_bytes": 519108, "memory_bytes_per_s": 8000000}
    )


def test_budgets_that_make_no_sense() -> None:
    assert [
        capacity("--memory", "much"),
        capacity("--memory", "0"),
        capacity("--kv-bytes", "-1"),
        capacity("--memory", 10**9, "--kv-bytes", 10**9),
        capacity("no/such/model", "--memory", 10**9),
    ] == snapshot(
        [
            "--memory is 'much': expected a number of bytes, such as 16000000000. See --help for the values allowed.",
            "--memory is '0': expected a number of bytes, such as 16000000000. See --help for the values allowed.",
            "--kv-bytes is '-1': expected at least 0. See --help for the values allowed.",
            "--memory is of the whole server, --kv-bytes of keys and values alone. Give one of the two.",
            "There is no model 'no/such/model': no such file or folder, no hub id, and not listed by `moa-server models`. Name a model with 'default' or 'gemma3-270m', a hub id (owner/name), a local folder, a .gguf file or a name of that list.",
        ]
    )
