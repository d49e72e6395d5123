"""Models fetched from a small hub of our own, whole, interrupted and refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants, file_download
from inline_snapshot import snapshot
from moa_shared.errors import ChecksumError, DiskFullError, ModelSourceError, NotFoundError
from moa_shared.models import resolve
from moa_shared.models.sources.hub import HubModel, pull, pulled
from moa_shared.programs.progress import SilentProgress, Task

from tests.support.fake_hub import FakeHub, serving
from tests.support.messages import raises
from tests.support.model_places import use_hub_cache
from tests.support.tiny_gguf import GgufWriter

SILENT = SilentProgress()
LARGE = b"GGUF" + bytes(range(256)) * 40_000  # ten chunks of the client's


@pytest.fixture
def hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_gguf: GgufWriter, model_folder: Path
) -> Iterator[FakeHub]:
    """A hub with a repository of GGUF files and one of safetensors, which the client takes for the real one."""
    plain = {path.name: path.read_bytes() for path in model_folder.iterdir()}
    ggufs = {"A-Q4_K_M.gguf": LARGE, "A-Q8_0.gguf": write_gguf().read_bytes(), "README.md": b"A"}
    ggufs |= {f"A-F16-{number:05}-of-00002.gguf": LARGE + bytes([number]) for number in (1, 2)}
    with serving(FakeHub({"o/A-GGUF": ggufs, "o/A": plain})) as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", running.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        use_hub_cache(monkeypatch, tmp_path / "hub")
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 20)
        monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
        yield running


def model(spec: str) -> HubModel:
    found = HubModel.parse(spec)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("o/A", ("o/A", "", "")),
        ("hub:o/A:Q4_K_M", ("o/A", "", "Q4_K_M")),
        ("o/A@refs/pr/1:x/*.gguf", ("o/A", "refs/pr/1", "x/*.gguf")),
    ],
)
def test_what_a_user_names(spec: str, parts: tuple[str, str, str]) -> None:
    assert model(spec) == HubModel(*parts)


@pytest.mark.parametrize("spec", ["A", "", "hub:", "hub:A", "o/A:", "https://o/A", "./a/b"])
def test_what_is_nothing_on_the_hub(spec: str) -> None:
    assert HubModel.parse(spec) is None


def test_a_file_is_fetched_once(hub: FakeHub, tmp_path: Path) -> None:
    wanted = model("o/A-GGUF")
    assert pulled(wanted) is None
    path = pull(wanted, SILENT)
    assert path.is_relative_to(tmp_path / "hub" / "models--o--A-GGUF" / "snapshots")
    assert path.name == "A-Q4_K_M.gguf"
    assert path.read_bytes() == LARGE
    assert pulled(wanted) == path
    assert pull(wanted, SILENT) == path
    assert [asked for asked in hub.asked if asked[0] == "GET" and "/resolve/" in asked[1]] == [
        ("GET", f"/o/A-GGUF/resolve/{'c' * 40}/A-Q4_K_M.gguf", "")
    ]
    assert not list(tmp_path.rglob("*.incomplete"))


def test_what_was_interrupted_leaves_nothing_and_is_fetched_again(hub: FakeHub, tmp_path: Path) -> None:
    wanted = model("o/A-GGUF:q4_k_m")
    hub.cut_after = [4_000_000, *[0] * 5]  # the client itself tries again while something comes
    with raises(
        ModelSourceError,
        snapshot(
            "The hub could not be reached for o/A-GGUF: peer closed connection without sending complete message body (received 0 bytes, expected 7094276). Check the network, or HF_ENDPOINT if you use a mirror; whole files that were fetched are kept."
        ),
    ):
        pull(wanted, SILENT)
    assert pulled(wanted) is None
    assert not list(tmp_path.rglob("*.incomplete"))
    assert pull(wanted, SILENT).read_bytes() == LARGE


def test_parts_are_fetched_together(hub: FakeHub) -> None:
    first = pull(model("o/A-GGUF:F16"), SILENT)
    assert first.name == "A-F16-00001-of-00002.gguf"
    second = first.with_name("A-F16-00002-of-00002.gguf")
    assert second.read_bytes() == LARGE + b"\x02"
    second.unlink()
    assert pulled(model("o/A-GGUF:F16")) is None


def test_safetensors_come_with_their_tokenizer(hub: FakeHub) -> None:
    folder = pull(model("o/A"), SILENT)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    assert pulled(model("o/A")) == folder


def test_serving_fetches_what_is_not_here(hub: FakeHub, cache: Path) -> None:
    with raises(
        NotFoundError,
        snapshot(
            "There is no model 'o/A-GGUF:Q8_0' on this machine. Fetch it from the hub: moa-server pull o/A-GGUF:Q8_0, or serve hub:o/A-GGUF:Q8_0."
        ),
    ):
        resolve("o/A-GGUF:Q8_0", cache)
    files = resolve("hub:o/A-GGUF:Q8_0", cache)
    assert (files.target_id, files.config["model_type"]) == ("o/A-GGUF:Q8_0", "llama")
    asked = len(hub.asked)
    assert resolve("hub:o/A-GGUF:Q8_0", cache) == resolve("o/a-gguf:q8_0", cache) == files
    assert len(hub.asked) == asked  # what is here needs no network
    assert resolve("hub:o/A", cache).target_id == "o/A"
    with raises(
        ModelSourceError,
        snapshot("o/A-GGUF on the hub holds no config.json. If it holds GGUF files: moa-server serve hub:o/A-GGUF."),
    ):
        resolve("o/A-GGUF", cache)


def test_refusals_are_sentences(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated.add("o/A-GGUF")
    for spec, message in (
        ("o/none", snapshot("The hub has no model o/none (or it is private). Check the id, or set HF_TOKEN.")),
        ("o/A-GGUF@v9", snapshot("o/A-GGUF has no revision 'v9'. Check the revision.")),
        (
            "o/A-GGUF:Q8_0",
            snapshot(
                "The hub gives o/A-GGUF only to those who accepted its terms. Accept them on the model's page and set HF_TOKEN."
            ),
        ),
    ):
        with raises(ModelSourceError, message):
            pull(model(spec), SILENT)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with raises(
        ModelSourceError,
        snapshot(
            "The hub could not be reached for o/A-GGUF: [Errno 111] Connection refused. Check the network, or HF_ENDPOINT if you use a mirror; whole files that were fetched are kept."
        ),
    ):
        pull(model("o/A-GGUF:Q8_0"), SILENT)


def test_a_file_that_is_not_what_the_hub_says(hub: FakeHub, tmp_path: Path) -> None:
    hub.lies["A-Q8_0.gguf"] = "0" * 64
    with raises(
        ChecksumError,
        snapshot(
            "TMP/hub/models--o--A-GGUF/snapshots/DIGEST/A-Q8_0.gguf has the sha256 DIGEST, expected 0000000000000000000000000000000000000000000000000000000000000000. It was deleted: fetch it again, or from another HF_ENDPOINT."
        ),
    ):
        pull(model("o/A-GGUF:Q8_0"), SILENT)
    assert not list((tmp_path / "hub").rglob("*.gguf")) + list(tmp_path.rglob("0" * 64))


def test_a_disk_that_is_full(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with raises(
        DiskFullError,
        snapshot(
            "o/A-GGUF needs 60.2 MB in TMP/hub, where 1.0 kB are free. Free some space, or set HF_HOME to a folder on a larger disk."
        ),
    ):
        pull(model("o/A-GGUF"), SILENT)


def test_a_disk_that_fills(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_download, "http_get", full)
    with raises(
        DiskFullError,
        snapshot(
            "The disk of TMP/hub ran full while writing o/A-GGUF. Free some space, or set HF_HOME to a folder on a larger disk."
        ),
    ):
        pull(model("o/A-GGUF"), SILENT)


def test_progress_is_in_bytes(hub: FakeHub) -> None:
    hub.cut_after = [1_000_000]
    counted: list[tuple[str, int | None, Any]] = []

    class Counting(SilentProgress):
        @contextmanager
        def task(self, title: str, total: int | None = None, *, is_bytes: bool = False) -> Iterator[Task]:
            with super().task(title, total, is_bytes=is_bytes) as task:
                counted.append((title, total, task))
                yield task

    pull(model("o/A-GGUF"), Counting())
    assert [(total, task.done) for title, total, task in counted if title.startswith("Fetching") and total] == [
        (len(LARGE), len(LARGE))
    ]


class Shown(SilentProgress):
    """The tasks that were shown, with their bytes."""

    def __init__(self) -> None:
        self.titles: list[tuple[str, int | None]] = []

    @contextmanager
    def task(self, title: str, total: int | None = None, *, is_bytes: bool = False) -> Iterator[Task]:
        self.titles.append((title, total if is_bytes else None))
        with super().task(title, total, is_bytes=is_bytes) as task:
            yield task


def test_a_model_by_its_id_is_fetched_with_its_bytes_shown(hub: FakeHub, tmp_path: Path) -> None:
    shown = Shown()
    files = resolve("o/A", tmp_path / "cache", shown)
    weights = sum(path.stat().st_size for path in files.weights)
    assert (f"Fetching o/A from {hub.url}", weights) in shown.titles
    again = Shown()
    assert resolve("o/A", tmp_path / "cache", again) == files
    assert not [title for title, _ in again.titles if hub.url in title]
