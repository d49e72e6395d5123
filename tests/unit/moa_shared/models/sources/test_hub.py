from __future__ import annotations

import errno
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
from moa_shared.errors import DiskFullError, ModelSourceError
from moa_shared.models.sources.hub import HUB_ID, fetch_from_hub
from moa_shared.programs.progress import SilentProgress

try:
    http_client: Any = import_module("httpx2")
except ImportError:  # the hub's client before its version 2
    http_client = import_module("httpx")

SILENT = SilentProgress()
Snapshot = Callable[..., str]


def answer(status: int) -> Any:
    return http_client.Response(status, request=http_client.Request("GET", "http://hub.invalid"))


@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (RepositoryNotFoundError("404", response=answer(404)), ModelSourceError, "The hub has no model some/model"),
        (GatedRepoError("403", response=answer(403)), ModelSourceError, "accepted its terms.*HF_TOKEN"),
        (RevisionNotFoundError("404", response=answer(404)), ModelSourceError, "some/model has no revision 'v2'"),
        (LocalEntryNotFoundError("Name or service not known\nmore"), ModelSourceError, "not known. Check the network"),
        (http_client.ConnectError("refused"), ModelSourceError, "could not be reached for it: refused"),
        (OSError(errno.ENOSPC, "No space left on device"), DiskFullError, "ran full"),
    ],
)
def test_each_failure_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception], message: str
) -> None:
    def snapshot_download(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(expected, match=message):
        fetch_from_hub("some/model@v2", SILENT)


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
