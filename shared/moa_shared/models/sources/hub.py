"""A model by its id on the Hugging Face hub, fetched into the hub's own cache (HF_HOME rules there).

Of a target only safetensors, configuration and tokenizer are fetched; a snapshot that is there already serves without
network.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moa_shared.errors import DiskFullError, ModelSourceError
from moa_shared.models.sources.cache import is_disk_full
from moa_shared.programs.progress import Progress

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

LARGER_DISK = "Free some space, or set HF_HOME to a folder on a larger disk."
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")  # owner/name, optionally @revision


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is fetched.

    Args:
        patterns: of the files' names.
        offline: what to do where the hub cannot be reached.
    """

    patterns: tuple[str, ...]
    offline: str


TARGET = Wanted(
    (
        "config.json", "generation_config.json", "*.safetensors", "model.safetensors.index.json", "tokenizer*",
        "vocab.json", "merges.txt", "special_tokens_map.json", "chat_template*",
    ),
    "Check the network, or name 'default', a local folder or a GGUF file.",
)  # fmt: skip


def fetch_from_hub(spec: str, progress: Progress, wanted: Wanted = TARGET) -> Path:
    """The local snapshot of `owner/name` or `owner/name@revision`.

    Raises:
        ModelSourceError: no such model, no permission, or the hub cannot be reached; it says which.
        DiskFullError: the hub's cache ran out of room.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]  # public, but not said to be

    from moa_shared.models.sources.hub_files import fetch_large

    repo_id, _, revision = spec.partition("@")
    patterns = list(wanted.patterns)
    unreachable = f"There is no folder {repo_id}, and the hub could not be reached for it"
    with hub_errors(repo_id, revision, unreachable, wanted.offline):
        info = _described(repo_id, revision)
        if info is not None:
            files = {file.rfilename: file for file in info.siblings or ()}
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
        if _is_of_http(error):
            return None
        raise


@contextmanager
def hub_errors(repo_id: str, revision: str, unreachable: str, hint: str) -> Iterator[None]:
    """A block that calls the hub's client.

    Args:
        unreachable: what to say where the hub cannot be reached; `hint`: and what to do.

    Raises:
        ModelSourceError: no such model, no permission, or the hub cannot be reached.
        DiskFullError: the hub's cache ran out of room.
    """
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings are lines between our sentences
    try:
        yield
    except GatedRepoError as error:
        raise ModelSourceError(
            f"The hub gives {repo_id} only to those who accepted its terms.",
            hint="Accept them on the model's page and set HF_TOKEN.",
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelSourceError(
            f"The hub has no model {repo_id} (or it is private).", hint="Check the id, or set HF_TOKEN."
        ) from error
    except RevisionNotFoundError as error:
        raise ModelSourceError(f"{repo_id} has no revision {revision!r}.", hint="Check the revision.") from error
    except PermissionError as error:
        raise ModelSourceError(
            f"{error.filename} cannot be written: {error.strerror}.",
            hint="Set HF_HOME to a folder that you may write to.",
        ) from error
    except (OSError, HfHubHTTPError) as error:  # every network failure of the client is an OSError
        if is_disk_full(error):
            raise DiskFullError(
                f"The disk of {hub_cache()} ran full while writing {repo_id}.", hint=LARGER_DISK
            ) from error
        raise _unreachable(unreachable, error, hint) from error
    except Exception as error:
        # the hub's client lets its HTTP library's own errors through; anything else is a defect and stays visible
        if _is_of_http(error):
            raise _unreachable(unreachable, error, hint) from error
        raise


def _is_of_http(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2")


def hub_cache() -> Path:
    """The hub's cache: HF_HUB_CACHE, HF_HOME and the like rule."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _unreachable(unreachable: str, error: Exception, hint: str) -> ModelSourceError:
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ModelSourceError(f"{unreachable}: {first_line.rstrip('.')}.", hint=hint)
