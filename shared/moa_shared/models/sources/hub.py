"""A model by its id on the Hugging Face hub, fetched into the hub's own cache (HF_HOME rules there).

Of a target only safetensors, configuration and tokenizer are fetched; a snapshot that is there already serves without
network.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moa_shared.models.sources.hub_client import hub_errors, is_of_http, say_if_no_template
from moa_shared.models.sources.hub_files import fetch_large
from moa_shared.programs.progress import Progress

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")  # owner/name, optionally @revision


@dataclass(frozen=True, slots=True)
class HubSelection:
    """What is fetched.

    Args:
        patterns: of the files' names.
        offline: what to do where the hub cannot be reached.
    """

    patterns: tuple[str, ...]
    offline: str


TARGET = HubSelection(
    (
        "config.json", "generation_config.json", "*.safetensors", "model.safetensors.index.json", "tokenizer*",
        "vocab.json", "merges.txt", "special_tokens_map.json", "chat_template*",
    ),
    "Check the network, or name 'default', a local folder or a GGUF file.",
)  # fmt: skip


def fetch_from_hub(spec: str, progress: Progress, wanted: HubSelection = TARGET) -> Path:
    """The local snapshot of `owner/name` or `owner/name@revision`.

    Raises:
        ModelSourceError: no such model, no permission, or the hub cannot be reached; it says which.
        DiskFullError: the hub's cache ran out of room.
    """
    repo_id, _, revision = spec.partition("@")
    patterns = list(wanted.patterns)
    unreachable = f"There is no folder {repo_id}, and the hub could not be reached for it"
    with hub_errors(repo_id, revision, unreachable, wanted.offline):
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]  # public, but not said to be

        info = _described(repo_id, revision)
        if info is not None:
            files = {file.rfilename: file for file in info.siblings or ()}
            if wanted is TARGET:
                say_if_no_template(info, progress)
            names = filter_repo_objects(files, allow_patterns=patterns)
            fetch_large(repo_id, str(info.sha), [files[name] for name in names], progress)
        with progress.task(f"Fetching {spec} from the hub"):  # small files, and links
            return Path(snapshot_download(repo_id, revision=revision or None, allow_patterns=patterns))


def _described(repo_id: str, revision: str) -> ModelInfo | None:
    """What the hub says of a model; None: nothing, so that its client takes the snapshot that is here, or says why."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return HfApi().model_info(repo_id, revision=revision or None, files_metadata=True)
    except (OSError, HfHubHTTPError):
        return None
    except Exception as error:
        if is_of_http(error):
            return None
        raise
