"""`moa-server drafters`: what it lists of a model on this machine, and of one that is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from inline_snapshot import snapshot
from moa_server.cli import cli
from moa_shared.errors import MoaError
from moa_shared.models.sources import source

from tests.support.messages import steady
from tests.support.model_places import places, put_into_hub  # noqa: F401 (a fixture)
from tests.support.tiny_gguf import GgufWriter


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(
    places: dict[str, Path],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(source, "_OLLAMAS_SERVICE", tmp_path / "none")


def run(*words: object) -> str:
    result = CliRunner().invoke(cli, ["drafters", *map(str, words)])
    if isinstance(result.exception, MoaError):
        return steady(str(result.exception))
    assert result.exit_code == 0, result.exception
    return result.stdout


def test_of_the_default_model() -> None:
    assert run() == snapshot("""\
drafter  kind                   where    trained for  licence
default  Mixture of Attentions  package  default      apache-2.0
deep     Mixture of Attentions  package  default      apache-2.0
`moa-server serve default` takes the best one that is here.
""")


def test_of_a_model_that_is_not_here() -> None:
    text = run("meta-llama/Llama-3-8B-Instruct")
    assert text == snapshot("""\
drafter                                  kind                   where  trained for                          licence
huawei-noah/MOASpec-Llama-3-8B-Instruct  Mixture of Attentions  hub    meta-llama/Meta-Llama-3-8B-Instruct  mit
yuhuili/EAGLE-LLaMA3-Instruct-8B         EAGLE-2                hub    meta-llama/Meta-Llama-3-8B-Instruct  see its page
meta-llama/Llama-3-8B-Instruct is not on this machine: drafters that fit it only by their sizes are not listed.
To fetch one and use it: moa-server serve meta-llama/Llama-3-8B-Instruct --drafter huawei-noah/MOASpec-Llama-3-8B-Instruct
""")
    told = json.loads(run("Qwen/Qwen3-8B", "--json"))
    assert not told["on_this_machine"]
    del told["drafters"][0]["runs"]  # this version may or may not
    assert told["drafters"][0] == snapshot(
        {
            "name": "z-lab/Qwen3-8B-DFlash-b16",
            "kind": "dflash",
            "where": "hub",
            "trained_for": "Qwen/Qwen3-8B",
            "fits_by": "model",
            "licence": None,
            "seen": "https://github.com/z-lab/dflash",
        }
    )
    assert run("owner/unknown") == snapshot("""\
No drafter for owner/unknown is known. `moa-train fit` makes one, and --drafter takes any folder or id on the hub.
owner/unknown is not on this machine: drafters that fit it only by their sizes are not listed.
""")


@pytest.mark.torch
def test_of_a_model_on_this_machine(places: dict[str, Path], tmp_path: Path) -> None:  # noqa: F811
    from tests.support.published_drafters import (
        EAGLE_CONFIG,
        MOA_CONFIG,
        eagle_tensors,
        moa_tensors,
        publish,
        save_llama3,
    )

    model = save_llama3(tmp_path / "tiny-llama3")
    named = {"speculators_config": {"verifier": {"name_or_path": "owner/tiny-llama3"}}}
    for name, tensors, config in (
        ("owner/eagle", eagle_tensors(), EAGLE_CONFIG | named),
        ("owner/moa", moa_tensors(), MOA_CONFIG),
    ):
        folder = publish(tmp_path / name, tensors, config)
        put_into_hub(places["hub"], name, {path.name: path for path in folder.iterdir()})
    assert run(model).replace(str(tmp_path), "TMP") == snapshot("""\
drafter      kind                   where         trained for        licence
owner/eagle  EAGLE-2                this machine  owner/tiny-llama3  see its page
owner/moa    Mixture of Attentions  this machine  not said           see its page
`moa-server serve TMP/tiny-llama3` takes the best one that is here.
""")
    told = json.loads(run(model, "--json"))["drafters"]
    assert [each["fits_by"] for each in told] == ["model", "sizes"]


def test_what_is_no_model(tmp_path: Path, write_gguf: GgufWriter) -> None:
    assert run("nothing") == snapshot(
        "There is no model 'nothing': no such file or folder, and no id on the hub. Name it as for `moa-server serve`; `moa-server models` shows those on this machine."
    )
    assert run(tmp_path / "none") == snapshot(
        "There is no model 'TMP/none': no such file or folder, and no id on the hub. Name it as for `moa-server serve`; `moa-server models` shows those on this machine."
    )
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty") == snapshot("TMP/empty holds no model. Name a model's folder or file.")
    (tmp_path / "two").mkdir()
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / "two" / name).write_bytes(write_gguf().read_bytes())
    assert run(tmp_path / "two") == snapshot(
        "TMP/two holds several models: TMP/two/a.gguf, TMP/two/b.gguf. Name one of them."
    )
    (tmp_path / "two" / "b.gguf").write_bytes(b"GGUF")
    assert run(tmp_path / "two" / "b.gguf") == snapshot(
        "The GGUF file TMP/two/b.gguf ends within its header. The file is truncated or corrupt: fetch it again."
    )
