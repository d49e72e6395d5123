"""All commands of docs/drafters.md, as they are there, with few tokens on the default model."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from moa_shared.drafter.checkpoint import load_checkpoint
from moa_shared.models import ModelFiles

from tests.support.programs import CHECKOUT, environment, printed, started
from tests.support.published_drafters import EAGLE_CONFIG, eagle_layer, publish

pytestmark = pytest.mark.torch

PAGE = CHECKOUT / "docs" / "drafters.md"
BLOCK = re.compile(r"^```sh ?(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FEW = {
    "MODEL": "default", "LEVEL": "int8", "ANSWERS": "4", "ANSWER_TOKENS": "12", "SLOTS": "4", "TOKENS": "256", "ROWS": "1",
    "ROW_TOKENS": "64", "WARMUP": "1", "ASKED": "1", "MEASURED_TOKENS": "9",
}  # fmt: skip
WORDS = ("Name three rivers.", "What is 2 + 2?", "Say good morning.", "Why is the sky blue?")


@pytest.fixture
def settings(tmp_path: Path, default_model_files: ModelFiles) -> dict[str, str]:
    """What the page's first block sets, with files that are there."""
    prompts = [{"messages": [{"role": "user", "content": text}]} for text in WORDS]
    files: dict[str, list[dict[str, Any]]] = {
        "PROMPTS": prompts,
        # of calibration each half has an answer of its own
        "CALIBRATION": [{"category": "names", "turns": [WORDS[0]]}, {"category": "reasons", "turns": [WORDS[3]]}],
        "QUESTIONS": [{"category": "chat", "turns": [WORDS[1]]}],
    }
    for name, lines in files.items():
        (tmp_path / f"{name.lower()}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    paths = {name: str(tmp_path / f"{name.lower()}.jsonl") for name in files}
    published = published_eagle(tmp_path / "published", default_model_files)
    return {**FEW, **paths, "PUBLISHED": str(published), "WORK": str(tmp_path / "work")}


def published_eagle(folder: Path, files: ModelFiles) -> Path:
    """A random EAGLE of the default model in the published layout."""
    sizes = {name: int(files.config[name]) for name in ("vocab_size", "hidden_size", "intermediate_size")}
    heads, keys = int(files.config["num_attention_heads"]), int(files.config["num_key_value_heads"])
    hidden, width = sizes["hidden_size"], sizes["hidden_size"] // heads
    tensors = {
        "embed_tokens.weight": torch.zeros(sizes["vocab_size"], hidden),
        "fc.weight": torch.randn(hidden, 2 * hidden) * hidden**-0.5,
        **eagle_layer("layers.0", hidden, hidden, keys * width, sizes["intermediate_size"], 1),
    }
    config = EAGLE_CONFIG | sizes | {"num_attention_heads": heads, "num_key_value_heads": keys}
    return publish(folder, {name: each.half() for name, each in tensors.items()}, config, pickled=True)


def blocks() -> Iterator[tuple[str, str]]:
    """What kind each block of commands is, and its text."""
    for found in BLOCK.finditer(PAGE.read_text("utf-8")):
        yield found[1], found[2]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_its_commands_lead_from_a_model_to_an_answer(tmp_path: Path, settings: dict[str, str]) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("moa-train", "moa-server", "moa-client"):
        package = name.replace("-train", "_training").replace("-", "_")
        script = f'#!/bin/sh\nexec "{sys.executable}" -m {package}.cli "$@"\n'
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    sources = ("proto", "shared", "server", "client", "training", "kernels")
    ours = environment(*sources, PATH=f"{programs}{os.pathsep}{os.environ['PATH']}", **settings)
    ours |= {"MOA_CLIENT_DAEMON": "false", "MOA_CLIENT_HISTORY": "false", "XDG_STATE_HOME": os.devnull}
    ours |= {"MOA_SERVER_PORT": "0", "MOA_SERVER_THREADS": "1"}
    kinds = [kind for kind, _ in blocks()]
    assert kinds == ["settings", "", "", "", "", "", "server", ""]
    said = ""
    for kind, text in blocks():
        if kind == "settings":
            assert set(re.findall(r"^(\w+)=", text, re.MULTILINE)) == set(settings)
        elif kind == "server":
            with started(["bash", "-ec", f"exec {text}"], ours) as server:
                assert server.out.readline().startswith("serving ")
                said = printed("bash", "-ec", list(blocks())[-1][1], seconds=200, env=ours)
            break
        else:
            printed("bash", "-ec", text, seconds=200, env=ours)
    assert said.strip()
    work = tmp_path / "work"
    config = load_checkpoint(work / "drafter" / "drafter.safetensors").config
    assert (config.reused_layers, config.lsa_mlp) == (3, 3072)
    for name, kind in (("ours", "drafter"), ("published", "published")):
        result = json.loads((work / f"{name}.json").read_text())
        assert (result["questions"], kind in result["checkpoint"]) == (1, True)
    assert {"ngrams.safetensors", "confidence.json"} <= {path.name for path in (work / "drafter").iterdir()}
