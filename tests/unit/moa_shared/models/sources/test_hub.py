from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from inline_snapshot import snapshot
from moa_shared.errors import DiskFullError, ModelSourceError
from moa_shared.models.sources.hub import HUB_ID, fetch_from_hub, hub_cache
from moa_shared.programs.progress import SilentProgress

from tests.support.messages import raises
from tests.support.model_places import use_hub_cache

try:
    http_client: Any = import_module("httpx2")
except ImportError:  # the hub's client before its version 2
    http_client = import_module("httpx")

SILENT = SilentProgress()
Snapshot = Callable[..., str]


@pytest.fixture(autouse=True)
def _no_description(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise http_client.ConnectError("refused")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", unreachable)


def answer(status: int) -> Any:
    return http_client.Response(status, request=http_client.Request("GET", "http://hub.invalid"))


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (
            RepositoryNotFoundError("404", response=answer(404)),
            ModelSourceError,
            snapshot("The hub has no model some/model (or it is private). Check the id, or set HF_TOKEN."),
        ),
        (
            GatedRepoError("403", response=answer(403)),
            ModelSourceError,
            snapshot(
                "The hub gives some/model only to those who accepted its terms. Accept them on the model's page and set HF_TOKEN."
            ),
        ),
        (
            RevisionNotFoundError("404", response=answer(404)),
            ModelSourceError,
            snapshot("some/model has no revision 'v2'. Check the revision."),
        ),
        (
            LocalEntryNotFoundError("Name or service not known\nmore"),
            ModelSourceError,
            snapshot(
                "There is no folder some/model, and the hub could not be reached for it: Name or service not known. Check the network, or name 'default', a local folder or a GGUF file."
            ),
        ),
        (
            http_client.ConnectError("refused"),
            ModelSourceError,
            snapshot(
                "There is no folder some/model, and the hub could not be reached for it: refused. Check the network, or name 'default', a local folder or a GGUF file."
            ),
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            DiskFullError,
            snapshot(
                "The disk of /cache/hub ran full while writing some/model. Free some space, or set HF_HOME to a folder on a larger disk."
            ),
        ),
    ],
)
def test_each_failure_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception], message: str
) -> None:
    def snapshot_download(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    use_hub_cache(monkeypatch, Path("/cache/hub"))
    with raises(expected, message):
        fetch_from_hub("some/model@v2", SILENT)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "/home/u/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x", "HF_HOME": "~/h"}, "/home/u/h/hub"),
        ({"HF_HOME": "/h", "HUGGINGFACE_HUB_CACHE": "/o"}, "/o"),
        ({"HF_HOME": "/h", "HF_HUB_CACHE": "$HOME/c"}, "/home/u/c"),
    ],
)
def test_the_cache_is_where_the_hubs_client_has_it(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"HOME": "/home/u"} | variables).items():
        monkeypatch.setenv(name, value)
    script = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    theirs = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert str(hub_cache()) == theirs.stdout.strip() == expected


def test_a_defect_stays_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    def defect(*_: object, **__: object) -> str:
        raise KeyError

    monkeypatch.setattr(huggingface_hub, "snapshot_download", defect)
    with pytest.raises(KeyError):
        fetch_from_hub("some/model", SILENT)


def test_the_snapshot_is_of_that_revision_and_without_pickles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, object] = {}

    def snapshot_download(repo_id: str, **options: object) -> str:
        asked.update(options, repo_id=repo_id)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert fetch_from_hub("some/model@v2", SILENT) == tmp_path
    assert asked["repo_id"] == "some/model"
    assert asked["revision"] == "v2"
    patterns = asked["allow_patterns"]
    assert isinstance(patterns, list)
    assert "*.safetensors" in patterns
    assert not [pattern for pattern in patterns if "bin" in pattern or pattern == "*"]


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real: Snapshot = huggingface_hub.snapshot_download

    def unreachable(*arguments: str, **options: object) -> str:
        return str(real(*arguments, **options, endpoint="http://127.0.0.1:9", cache_dir=tmp_path))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(ModelSourceError, match=r"There is no folder some/model, and the hub could not be reached"):
        fetch_from_hub("some/model", SILENT)


@pytest.mark.parametrize("spec", ["HuggingFaceTB/SmolLM2-135M-Instruct", "a/b@main", "a/b@refs/pr/1"])
def test_hub_ids(spec: str) -> None:
    assert HUB_ID.fullmatch(spec)


@pytest.mark.parametrize("spec", ["default", "./a/b", "/a/b", "~/a", "a/b/c", "a b/c", "../a", ""])
def test_what_is_no_hub_id(spec: str) -> None:
    assert not HUB_ID.fullmatch(spec)
