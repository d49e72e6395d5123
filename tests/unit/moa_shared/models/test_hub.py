"""Models fetched from a small hub of our own, whole, interrupted and refused, and which files are meant."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants, file_download
from moa_shared.errors import ChecksumError, DiskFullError, ModelSourceError, NotFoundError
from moa_shared.models import resolve
from moa_shared.models.hub import HUB_ID, HubModel, choose_files, fetch_from_hub, pull, pulled
from moa_shared.programs.progress import Progress

from tests.support.messages import says
from tests.support.model_places import FakeHub, serving, use_hub
from tests.support.tiny_gguf import GgufWriter

SILENT = Progress()
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
        use_hub(monkeypatch, running.url, tmp_path / "hub")
        yield running


def model(spec: str) -> HubModel:
    found = HubModel.parse(spec)
    assert found is not None
    return found


def test_a_file_is_fetched_once(hub: FakeHub, tmp_path: Path) -> None:
    wanted = model("o/A-GGUF")
    assert pulled(wanted) is None
    path = pull(wanted, SILENT)
    assert path.is_relative_to(tmp_path / "hub" / "models--o--A-GGUF" / "snapshots")
    assert path.name == "A-Q4_K_M.gguf"
    assert path.read_bytes() == LARGE
    assert pulled(wanted) == path
    assert pulled(HubModel("o/A-GGUF", "../../..", "")) is None
    assert pull(wanted, SILENT) == path
    assert [asked for asked in hub.asked if asked[0] == "GET" and "/resolve/" in asked[1]] == [
        ("GET", f"/o/A-GGUF/resolve/{'c' * 40}/A-Q4_K_M.gguf", "")
    ]
    assert not list(tmp_path.rglob("*.incomplete"))


def test_what_was_interrupted_continues_where_it_broke_off(hub: FakeHub, tmp_path: Path) -> None:
    wanted = model("o/A-GGUF:q4_k_m")
    hub.cut_after = [4_000_000, *[0] * 5]  # the client itself tries again while something comes
    with says(ModelSourceError, "The hub could not be reached for o/A-GGUF: peer closed connection without"):
        pull(wanted, SILENT)
    assert pulled(wanted) is None
    [partial] = tmp_path.rglob("*.incomplete")
    begun = partial.stat().st_size
    assert 0 < begun < len(LARGE)
    assert pull(wanted, SILENT).read_bytes() == LARGE
    assert f"bytes={begun}-" in {told for method, _, told in hub.asked if method == "GET"}
    assert not list(tmp_path.rglob("*.incomplete"))


def test_heads_that_guess_ahead_come_with_their_model(hub: FakeHub) -> None:
    hub.repos["o/A-GGUF"] |= {"mtp-A.gguf": b"GGUF", "MTP/mtp-A-Q4_K_M.gguf": b"GGUF", "mmproj-A.gguf": b"GGUF"}
    path = pull(model("o/A-GGUF"), SILENT)
    assert path.name == "A-Q4_K_M.gguf"
    assert [beside.name for beside in path.parent.rglob("*.gguf") if beside != path] == ["mtp-A.gguf"]
    hub.repos["o/A-GGUF"]["mtp-B.gguf"] = b"GGUF"
    assert not list(pull(model("o/A-GGUF:Q8_0"), SILENT).parent.glob("mtp-B*"))  # which of two is meant nobody says


def test_parts_are_fetched_together(hub: FakeHub) -> None:
    first = pull(model("o/A-GGUF:F16"), SILENT)
    assert first.name == "A-F16-00001-of-00002.gguf"
    second = first.with_name("A-F16-00002-of-00002.gguf")
    assert second.read_bytes() == LARGE + b"\x02"
    second.unlink()
    assert pulled(model("o/A-GGUF:F16")) is None


def test_serving_fetches_what_is_not_here(hub: FakeHub, cache: Path) -> None:
    with says(NotFoundError, "There is no model 'o/A-GGUF:Q8_0' on this machine"):
        resolve("o/A-GGUF:Q8_0", cache)
    files = resolve("hub:o/A-GGUF:Q8_0", cache)
    assert (files.target_id, files.config["model_type"]) == ("o/A-GGUF:Q8_0", "llama")
    asked = len(hub.asked)
    assert resolve("hub:o/A-GGUF:Q8_0", cache) == resolve("o/a-gguf:q8_0", cache) == files
    assert len(hub.asked) == asked  # what is here needs no network
    assert resolve("hub:o/A", cache).target_id == resolve("o/A", cache).target_id == "o/A"
    assert resolve(f"o/A@{'c' * 40}", cache).fingerprint == resolve("o/A", cache).fingerprint


def test_refusals_are_sentences(hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated.add("o/A-GGUF")
    for spec, message in (
        ("o/none", "The hub has no model o/none (or it is private)"),
        ("o/A-GGUF@v9", "o/A-GGUF has no revision 'v9'"),
        ("o/A-GGUF:Q8_0", "The hub gives o/A-GGUF only to those who accepted its terms"),
    ):
        with says(ModelSourceError, message):
            pull(model(spec), SILENT)
    hub.gated.clear()
    hub.gone.add("A-Q8_0.gguf")
    with says(ModelSourceError, "The hub lists a file of o/A-GGUF that it does not have (404). Try again later,"):
        pull(model("o/A-GGUF:Q8_0"), SILENT)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with says(ModelSourceError, "The hub could not be reached for o/A-GGUF: [Errno 111] Connection refused"):
        pull(model("o/A-GGUF:Q8_0"), SILENT)
    with says(ModelSourceError, "There is no folder o/A, and the hub could not be reached for it:"):
        fetch_from_hub("o/A", SILENT, ["*"])


def test_a_file_that_is_not_what_the_hub_says(hub: FakeHub, tmp_path: Path) -> None:
    hub.lies["A-Q8_0.gguf"] = "0" * 64
    with says(ChecksumError, "A-Q8_0.gguf has the sha256 DIGEST, expected 0"):
        pull(model("o/A-GGUF:Q8_0"), SILENT)
    assert not list((tmp_path / "hub").rglob("*.gguf")) + list(tmp_path.rglob("blobs/0000*"))


def test_a_disk_that_fills(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(file_download, "http_get", full)
    with says(DiskFullError, "The disk of TMP/hub ran full while writing o/A-GGUF. Free some space, or set"):
        pull(model("o/A-GGUF"), SILENT)


def test_hub_ids() -> None:
    assert all(map(HUB_ID.fullmatch, ("HuggingFaceTB/SmolLM2-135M-Instruct", "a/b@main", "a/b@refs/pr/1")))
    assert not any(map(HUB_ID.fullmatch, ("default", "./a/b", "/a/b", "~/a", "a/b/c", "a b/c", "../a", "")))


PARTS = ["big/A-Q8_0-00001-of-00002.gguf", "big/A-Q8_0-00002-of-00002.gguf"]
GGUF = ["A-Q4_K_M.gguf", "A-Q4_K_S.gguf", "A-IQ4_XS.gguf", *PARTS, "mmproj-A-F16.gguf", "README.md", "config.json"]
PLAIN = ["config.json", "model.safetensors", "tokenizer.json", "pytorch_model.bin", "README.md"]


def test_what_is_meant() -> None:
    for names, wanted, chosen in (
        (GGUF, "", ["A-Q4_K_M.gguf"]),
        (GGUF, "q4_k_s", ["A-Q4_K_S.gguf"]),
        (GGUF, "A-Q8_0", PARTS),
        (GGUF, "a-q4_k_m.GGUF", ["A-Q4_K_M.gguf"]),
        (["only.gguf", "README.md"], "", ["only.gguf"]),
        (PLAIN, "", ["config.json", "model.safetensors", "tokenizer.json"]),
        ([*PLAIN, "A-Q8_0.gguf"], "Q8_0", ["A-Q8_0.gguf"]),
    ):
        assert choose_files("o/A", names, wanted) == chosen


def test_what_is_not_there_or_not_clear() -> None:
    for names, wanted, message in (
        (GGUF, "Q5_K_M", "o/A holds no GGUF file 'Q5_K_M', only A-IQ4_XS.gguf, A-Q4_K_M.gguf,"),
        (["A-Q8_0.gguf", "B-Q8_0.gguf"], "", "o/A may mean several models: A-Q8_0.gguf, B-Q8_0.gguf"),
        (["README.md"], "", "o/A holds neither GGUF files nor safetensors"),
        (PLAIN, "Q4_K_M", "o/A holds no GGUF files"),
    ):
        with says(ModelSourceError, message):
            choose_files("o/A", names, wanted)
