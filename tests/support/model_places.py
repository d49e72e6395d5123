"""Models put where other programs keep theirs, in folders of a test's own."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest


def put_into_hub(cache: Path, repo: str, files: dict[str, Path], commit: str = "c0", ref: str | None = "main") -> Path:
    """A snapshot as huggingface_hub writes it: links to blobs. The commit's folder."""
    repository = cache / f"models--{repo.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    for name, source in files.items():
        data = source.read_bytes()
        blob = repository / "blobs" / hashlib.sha256(data).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).symlink_to(blob)
    if ref is not None:
        (repository / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
        (repository / "refs" / ref).write_text(commit)
    return snapshot


def put_into_ollama(folder: Path, name: str, weights: Path | None, *other: str) -> Path:
    """A model as ollama keeps it; the manifest. `name`: HOST/OWNER/NAME/TAG. `other`: kinds of further layers."""
    layers = [{"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{'0' * 64}"} for kind in other]
    if weights is not None:
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
        blob = folder / "blobs" / f"sha256-{digest}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(weights, blob)
        layers.insert(0, {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"})
    manifest = folder / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return manifest


def use_hub_cache(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Makes this folder the hub's cache, for its client too, which has read the environment already."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Empty places of its own for the hub, ollama and LM Studio."""
    home = tmp_path / "home"
    found = {"hub": home / "hub", "ollama": home / ".ollama/models", "lm studio": home / ".lmstudio/models"}
    for folder in found.values():
        folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    use_hub_cache(monkeypatch, found["hub"])
    return found
