"""Where conversations come from: files, or a data set of the hub."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from moa_shared.errors import DataError, NotFoundError
from moa_shared.programs.progress import Progress

HUB_PREFIX = "hub:"
_PATTERNS = ("*.jsonl", "*.jsonl.zst")


def find_sources(names: Iterable[str], progress: Progress) -> list[Path]:
    """Files of JSON lines; "hub:owner/name" means all of that data set.

    Raises:
        NotFoundError: a file that is not there.
        DataError: a data set that cannot be fetched or holds no JSON lines.
    """
    found: list[Path] = []
    for name in names:
        if name.startswith(HUB_PREFIX):
            found += _fetch(name.removeprefix(HUB_PREFIX), progress)
        elif Path(name).is_file():
            found.append(Path(name))
        else:
            raise NotFoundError(
                f"There is no file {name}.", hint="Name files of JSON lines, or hub:owner/name for a hub data set."
            )
    return found


def _fetch(repository: str, progress: Progress) -> list[Path]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    progress.note(f"Fetching the data set {repository} ...")
    try:
        folder = Path(snapshot_download(repository, repo_type="dataset", allow_patterns=list(_PATTERNS)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"The data set {repository} cannot be fetched ({reason}).", hint="Check name and network."
        ) from None
    files = sorted(path for pattern in _PATTERNS for path in folder.rglob(pattern))
    if not files:
        raise DataError(f"The data set {repository} holds no JSON lines.", hint="Convert it to JSON lines of messages.")
    return files
