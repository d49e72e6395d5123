"""Models by their names: what the table says, and what a name fetches from a small hub of our own, or cannot."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from moa_server import catalogue as of_server
from moa_server.catalogue import drafter_of, list_catalogue
from moa_server.listing import known_drafter, list_drafters
from moa_server.loading import ServerPlan
from moa_server.settings import ServerSettings
from moa_shared.drafter.companion import KNOWN_COMPANIONS, find_companion
from moa_shared.drafter.published import model_key
from moa_shared.errors import ModelSourceError
from moa_shared.models import resolve
from moa_shared.models.catalogue import CATALOGUE, expand
from moa_shared.models.hub import HubModel
from moa_shared.programs.machine import FreeMemory
from moa_shared.programs.progress import Progress

from tests.support import tiny_gguf
from tests.support.messages import says
from tests.support.model_places import FakeHub, places, serving, use_hub  # noqa: F401 (a fixture)
from tests.support.tiny_gguf import GgufWriter, write_gguf

__all__ = ["write_gguf"]
SILENT = Progress()


@pytest.fixture
def hub(
    places: dict[str, Path],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    write_gguf: GgufWriter,
) -> Iterator[FakeHub]:
    """A hub with tiny files under the ids of a model and its companion, whose heads the kernels compute."""
    for heads in ("HEADS", "KV_HEADS"):
        monkeypatch.setattr(tiny_gguf, heads, 1)
    model, small = (write_gguf(f"{seed}.gguf", seed=seed, architecture="qwen3", rotated=32) for seed in (1, 2))
    repos = {
        "Qwen/Qwen3-4B-GGUF": {"Qwen3-4B-Q4_K_M.gguf": model.read_bytes(), "Qwen3-4B-Q8_0.gguf": b"GGUF"},
        "Qwen/Qwen3-0.6B-GGUF": {"Qwen3-0.6B-Q8_0.gguf": small.read_bytes()},
    }
    with serving(FakeHub(repos)) as running:
        use_hub(monkeypatch, running.url, places["hub"])
        monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
        yield running


class Notes(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def plan(companion: str = "", progress: Progress = SILENT) -> ServerPlan:
    return ServerPlan(ServerSettings(model="qwen3-4b", companion=companion), progress)


def test_the_table_is_sound() -> None:
    assert list(CATALOGUE) == [
        "qwen3.5-0.8b",
        "qwen3.5-4b",
        "qwen3.5-9b",
        "qwen3-0.6b",
        "qwen3-1.7b",
        "qwen3-4b",
        "qwen3-8b",
        "llama-3.2-1b",
        "llama-3.2-3b",
        "llama-3.1-8b",
        "gemma-3-1b",
        "gemma-3-4b",
        "gemma-4-e4b",
        "gemma-4-12b",
        "smollm3",
        "phi-4-mini",
        "gpt-oss-20b",
    ]
    companions = {model_key(each["hub"]) for each in KNOWN_COMPANIONS}
    for each in CATALOGUE.values():
        on_hub = HubModel.parse(each.hub)
        assert on_hub is not None
        assert on_hub.wanted
        assert each.download_bytes < each.memory_bytes < 2 * each.download_bytes + 1e9
        assert not each.companion or model_key(CATALOGUE[each.companion].hub) in companions
        assert not (name := drafter_of(each)) or (found := known_drafter(name)) is None or found.form.is_run
    assert drafter_of(CATALOGUE["qwen3-4b"]) == "z-lab/Qwen3-4B-DFlash-b16"
    assert drafter_of(CATALOGUE["llama-3.1-8b"])


def test_a_name_fetches_the_file_that_it_stands_for(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [each.name for each in list_drafters("qwen3-4b", None, SILENT).drafters][:1] == ["z-lab/Qwen3-4B-DFlash-b16"]
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1_000)
    hub.cut_after = [5_000, *[0] * 5]
    with says(ModelSourceError, "The hub could not be reached for Qwen/Qwen3-4B-GGUF: peer closed connection without"):
        resolve("qwen3-4b")
    files = resolve("Qwen3-4B")
    assert (files.target_id, files.weights[0].name) == ("Qwen/Qwen3-4B-GGUF:Q4_K_M", "Qwen3-4B-Q4_K_M.gguf")
    assert {told for *_, told in hub.asked} == {"", "bytes=5000-"}
    asked = len(hub.asked)
    assert resolve("qwen3-4b") == files
    assert len(hub.asked) == asked  # what is here needs no network
    assert find_companion("qwen3-0.6b").target_id == "Qwen/Qwen3-0.6B-GGUF:Q8_0"
    assert [each.model.name for each in list_catalogue() if each.is_here] == ["qwen3-0.6b", "qwen3-4b"]


def test_a_file_of_the_same_name_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert expand("qwen3-4b") == "hub:Qwen/Qwen3-4B-GGUF:Q4_K_M"
    (tmp_path / "qwen3-4b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert [expand(name) for name in ("qwen3-4b", "default", "o/A")] == ["qwen3-4b", "default", "o/A"]


def test_a_server_takes_the_companion_where_none_is_named(hub: FakeHub) -> None:
    hub.gated.add("Qwen/Qwen3-0.6B-GGUF")
    notes = Notes()
    assert plan(progress=notes).companion is None
    assert notes.lines[0].startswith("No companion is offered. The hub gives Qwen/Qwen3-0.6B-GGUF only to those who")
    with says(ModelSourceError, "The hub gives Qwen/Qwen3-0.6B-GGUF only to those who"):  # who asks for it must have it
        _ = plan("qwen3-0.6b").companion
    hub.gated.clear()
    assert (taken := plan().companion) is not None
    assert taken.hub == f"hub:Qwen/Qwen3-0.6B-GGUF@{'c' * 40}:Q8_0"  # where devices fetch it
    assert plan("none").companion is None


def test_what_cannot_be_had_is_one_sentence_that_says_how_to_bring_it(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring = "or copy the files here from another machine, and name their folder or the GGUF file."
    gone, others = hub.repos["Qwen/Qwen3-4B-GGUF"], {"README.md": b""}

    def fails(words: str) -> None:
        with says(ModelSourceError, words) as caught:
            resolve("qwen3-4b")
        assert bring in str(caught.value) or "Q4_K_M" in words

    hub.gated.add("Qwen/Qwen3-4B-GGUF")
    fails("The hub gives Qwen/Qwen3-4B-GGUF only to those who accepted its terms.")
    hub.gated.clear()
    hub.gone.add("Qwen3-4B-Q4_K_M.gguf")
    fails("The hub lists a file of Qwen/Qwen3-4B-GGUF that it does not have (404).")
    hub.repos["Qwen/Qwen3-4B-GGUF"] = {"Qwen3-4B-Q8_0.gguf": gone["Qwen3-4B-Q8_0.gguf"]} | others
    fails("Qwen/Qwen3-4B-GGUF holds no GGUF file 'Q4_K_M', only Qwen3-4B-Q8_0.gguf.")
    del hub.repos["Qwen/Qwen3-4B-GGUF"]
    fails("The hub has no model Qwen/Qwen3-4B-GGUF (or it is private).")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    fails("The hub could not be reached for Qwen/Qwen3-4B-GGUF: [Errno 111] Connection refused. Check the network, or")


def test_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_server, "free_memory", lambda: FreeMemory(4 * 10**9))
    fits = {each.model.name: each.verdict for each in list_catalogue()}
    assert fits["qwen3-4b"] == "yes"
    assert fits["gpt-oss-20b"] == "no: 4.0 GB of memory are free"
