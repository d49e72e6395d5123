"""The hub's client: where it keeps what it has fetched, and its errors in our words. It need not be installed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from moa_shared.errors import DiskFullError, ModelSourceError
from moa_shared.models.sources.cache import is_disk_full
from moa_shared.models.sources.files import RAW_TEXT_ONLY
from moa_shared.programs.missing_packages import install_extra
from moa_shared.programs.progress import Progress

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

LARGER_DISK = "Free some space, or set HF_HOME to a folder on a larger disk."


@contextmanager
def hub_errors(repo_id: str, revision: str, unreachable: str, hint: str) -> Iterator[None]:
    """A block that calls the hub's client.

    Args:
        unreachable: what to say where the hub cannot be reached; `hint`: and what to do.

    Raises:
        ModelSourceError: no such model, no permission, the hub cannot be reached, or its client is not installed.
        DiskFullError: the hub's cache ran out of room.
    """
    try:
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ModuleNotFoundError as error:
        hint = f"Install it: {install_extra('hub')}. Or name a local folder or a GGUF file."
        raise ModelSourceError(
            f"Fetching {repo_id} needs huggingface_hub, which is not installed.", hint=hint
        ) from error
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
        if is_of_http(error):
            raise _unreachable(unreachable, error, hint) from error
        raise


def is_of_http(error: Exception) -> bool:
    """Whether an error is one of the HTTP library that the hub's client uses."""
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2")


def hub_cache() -> Path:
    """The hub's cache, as its client finds it: HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME rule."""
    home = os.environ.get("HF_HOME", os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface"))
    older = os.environ.get("HUGGINGFACE_HUB_CACHE", os.path.join(home, "hub"))
    return Path(os.path.expandvars(os.environ.get("HF_HUB_CACHE", older))).expanduser()


def _unreachable(unreachable: str, error: Exception, hint: str) -> ModelSourceError:
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ModelSourceError(f"{unreachable}: {first_line.rstrip('.')}.", hint=hint)


def say_if_no_template(info: ModelInfo, progress: Progress) -> None:
    """Says before anything is fetched that a model has no chat template, where the hub knows it."""
    told = info.gguf or (info.config or {}).get("tokenizer_config")
    names = [file.rfilename for file in info.siblings or ()]
    if told and not told.get("chat_template") and not any(name.startswith("chat_template") for name in names):
        progress.note(f"{info.id} has no chat template: {RAW_TEXT_ONLY}.")
