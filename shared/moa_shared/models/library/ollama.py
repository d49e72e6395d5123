"""ollama's models: a manifest each, whose weights are a blob named by its hash, a GGUF file without a suffix."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from moa_shared.models.library.local_model import LocalModel, files_below
from moa_shared.text.json_text import parse_json

PLACE = "ollama"
_REGISTRY, _OWNER = "registry.ollama.ai", "library"  # which names leave out
_WEIGHTS, _ADAPTER = "application/vnd.ollama.image.model", "application/vnd.ollama.image.adapter"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SERVICE = Path("/usr/share/ollama/.ollama/models")  # of the user that the service runs as


def ollama_folders() -> list[Path]:
    """Where ollama keeps models: OLLAMA_MODELS, else the user's folder and the service's."""
    named = os.environ.get("OLLAMA_MODELS")
    return [Path(named)] if named else [Path.home() / ".ollama" / "models", _SERVICE]


def ollama_models(folder: Path) -> Iterator[LocalModel]:
    """The models of a folder of ollama's, by ollama's names."""
    manifests = folder / "manifests"
    for path in sorted(path for path, _ in files_below(manifests)):
        parts = path.relative_to(manifests).parts
        if len(parts) < 3:  # no HOST/NAME/TAG
            continue
        host, *middle, tag = parts
        words = [] if host == _REGISTRY else [host]
        words += middle[1:] if host == _REGISTRY and middle[0] == _OWNER else middle
        digest, refusal = _weights(path)
        weights = folder / "blobs" / digest.replace(":", "-") if digest else path
        yield LocalModel(f"{'/'.join(words)}:{tag}", PLACE, weights, refusal)


def _weights(manifest: Path) -> tuple[str, str]:
    """The digest of a model's weights, or "" and why they cannot be served."""
    try:
        layers = [(str(each["mediaType"]), str(each["digest"])) for each in _layers(manifest)]
    except (OSError, ValueError, KeyError, TypeError):
        return "", "has a manifest that cannot be read"
    found = [digest for kind, digest in layers if kind == _WEIGHTS and _DIGEST.fullmatch(digest)]
    if any(kind == _ADAPTER for kind, _ in layers):
        return "", "has an adapter, which moa does not apply"
    if len(found) != 1:
        return "", f"has {len(found) or 'no'} GGUF files, expected one"
    return found[0], ""


def _layers(manifest: Path) -> list[dict[str, object]]:
    layers: list[dict[str, object]] = parse_json(manifest.read_text("utf-8"))["layers"]
    return layers
