"""Models of the Hugging Face hub, or of a mirror (HF_ENDPOINT), fetched into the hub's own cache (HF_HOME rules there).

A snapshot that is there already serves without network. Large files are checked against the hash that the hub says,
and continue where an earlier try broke off, which huggingface_hub's own downloads do not.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from moa_shared.errors import ChecksumError, DiskFullError, ModelSourceError
from moa_shared.models.files import RAW_TEXT_ONLY, find_weights
from moa_shared.models.gguf_entry import find_parts, first_parts, is_model_file, model_name, storage_label
from moa_shared.models.storage.cache import hash_file, is_disk_full, locked, require_space
from moa_shared.programs.progress import Progress, Task

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")  # owner/name, optionally @revision
PREFIX = "hub:"
_SPEC = re.compile(rf"(?:{PREFIX})?(?P<id>{HUB_ID.pattern})(?::(?P<wanted>.+))?")
TARGET = (
    *("config.json", "generation_config.json", "*.safetensors", "model.safetensors.index.json", "tokenizer*"),
    *("vocab.json", "merges.txt", "special_tokens_map.json", "chat_template*"),
)
_USUAL = "Q4_K_M"  # taken where nothing is said, as llama.cpp and ollama do
_LARGER_DISK = "Free some space, or set HF_HOME to a folder on a larger disk."
_BRING = "or copy the files here from another machine, and name their folder or the GGUF file"
_REPOSITORY = "models--"  # how the hub's cache calls the folder of owner/name: models--owner--name
_MAIN = "main"


def fetch_from_hub(spec: str, progress: Progress, patterns: Sequence[str]) -> Path:
    """The local snapshot of `owner/name[@revision]`, with the files whose names are of some patterns.

    ModelSourceError, ChecksumError, DiskFullError: it is not there, not what the hub says, or too large.
    """
    repo_id, _, revision = spec.partition("@")
    unreachable = f"There is no folder {repo_id}, and the hub could not be reached for it"
    with _hub_errors(repo_id, revision, unreachable, f"Check the network, {_BRING}."):
        from huggingface_hub import HfApi

        try:
            info = HfApi().model_info(repo_id, revision=revision or None, files_metadata=True)
        except Exception as error:
            if not _is_of_network(error):
                raise
            info = None  # the client takes the snapshot that is here, or says why
        return _fetch(repo_id, revision, info, patterns, progress)


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model on the hub: `[hub:]OWNER/NAME[@REVISION][:WANTED]`; `wanted` as of `choose_files`."""

    repo_id: str
    revision: str
    wanted: str

    @classmethod
    def parse(cls, spec: str) -> HubModel | None:
        match = _SPEC.fullmatch(spec)
        if match is None:
            return None
        repo_id, _, revision = match["id"].partition("@")
        return cls(repo_id, revision, match["wanted"] or "")


def pulled(model: HubModel) -> Path | None:
    """The model in the hub's cache: a GGUF file, or a folder of safetensors; None: it is not there, or not whole."""
    repository = _folder_of(model.repo_id)
    named, commit = _snapshots(repository), repository / "snapshots" / model.revision
    snapshot = commit if re.fullmatch(r"[0-9a-f]{40}", model.revision) else named.get(model.revision or _MAIN)
    if snapshot is None or not snapshot.is_dir():
        return None
    try:
        names = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
        found = _served(snapshot, choose_files(model.repo_id, names, model.wanted))
        return found if found.is_file() or (found / "tokenizer.json").is_file() else None
    except ModelSourceError:  # the hub may have what is meant, or the rest of it
        return None


def pull(model: HubModel, progress: Progress) -> Path:
    """Fetch what is not there yet; the GGUF file (the first of several), or the folder of safetensors."""
    repo_id, revision = model.repo_id, model.revision
    offline = f"Check the network, or HF_ENDPOINT if you use a mirror; {_BRING}. What was fetched is kept."
    with _hub_errors(repo_id, revision, f"The hub could not be reached for {repo_id}", offline):
        from huggingface_hub import HfApi

        info = HfApi().model_info(repo_id, revision=revision or None, files_metadata=True)
        found = [file.rfilename for file in info.siblings or ()]
        names = choose_files(repo_id, found, model.wanted)
        told = info.gguf or (info.config or {}).get("tokenizer_config")
        if told and not told.get("chat_template") and not any(name.startswith("chat_template") for name in found):
            progress.note(f"{repo_id} has no chat template: {RAW_TEXT_ONLY}.")
        heads = [name for name in found if fnmatchcase(name, str(PurePosixPath(names[0]).with_name("mtp-*.gguf")))]
        if len(heads) == 1:  # of several nothing says which is best
            progress.note(f"{heads[0]}, which guesses ahead for the model, comes with it.")
            names += heads
        return _served(_fetch(repo_id, revision, info, names, progress), names)


def _served(snapshot: Path, names: Sequence[str]) -> Path:
    if ggufs := [name for name in names if is_model_file(Path(name))]:
        return find_parts(snapshot / ggufs[0])[0]
    find_weights(snapshot)
    return snapshot


def _fetch(repo_id: str, revision: str, info: ModelInfo | None, patterns: Sequence[str], progress: Progress) -> Path:
    from huggingface_hub import constants, snapshot_download, try_to_load_from_cache
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()  # they would mix with ours
    commit = None if info is None else info.sha
    large = [
        (file, file.lfs.sha256)
        for file in (info.siblings if info else None) or ()
        if file.lfs is not None
        and any(fnmatchcase(file.rfilename, pattern) for pattern in patterns)
        and not isinstance(try_to_load_from_cache(repo_id, file.rfilename, revision=commit), str)
    ]
    total = sum(file.size or 0 for file, _ in large)
    if large:
        cache = hub_cache()
        cache.mkdir(parents=True, exist_ok=True)
        require_space(cache, total, repo_id, _LARGER_DISK)
        with progress.task(f"Fetching {repo_id} from {constants.ENDPOINT}", total, is_bytes=True) as task:
            for file, sha256 in large:
                _fetch_blob(repo_id, commit, file, sha256, task, progress)
    with progress.task(f"Fetching {repo_id} from the hub"):
        return Path(snapshot_download(repo_id, revision=revision or None, allow_patterns=list(patterns)))


def _fetch_blob(
    repo_id: str, commit: str | None, file: RepoSibling, sha256: str, task: Task, progress: Progress
) -> None:
    """Puts a file where the hub's client looks for it by its hash, then has the client link its name to it."""
    from huggingface_hub import constants, file_download, hf_hub_download, hf_hub_url
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]  # documented, and not in __all__

    name, folder = file.rfilename, _folder_of(repo_id)
    blob, lock = folder / "blobs" / sha256, hub_cache() / ".locks" / folder.name / sha256  # the client's own lock
    partial, counter = blob.with_name(f"{sha256}.moa.incomplete"), _counter(task)
    with locked(lock, progress):
        if not blob.is_file() and (file.size or 0) <= constants.MAX_HTTP_DOWNLOAD_SIZE:
            blob.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("ab") as content:
                url, done, headers = hf_hub_url(repo_id, name, revision=commit), content.tell(), build_hf_headers()
                file_download.http_get(
                    url, content, resume_size=done, headers=headers, expected_size=file.size, tqdm_class=counter
                )
            _check_hash(partial, name, sha256, progress)
            partial.replace(blob)
    path = Path(hf_hub_download(repo_id, name, revision=commit, tqdm_class=counter)).resolve()
    if path != blob.resolve():  # larger than what comes over HTTP, or a mirror's that calls it otherwise
        _check_hash(path, name, sha256, progress)


def _check_hash(path: Path, name: str, sha256: str, progress: Progress) -> None:
    if (got := hash_file(path, progress)) != sha256:
        path.unlink()
        hint = "It was deleted: fetch it again, or from another HF_ENDPOINT."
        raise ChecksumError(f"{name} has the sha256 {got}, expected {sha256}.", hint=hint)


def _counter(task: Task) -> Any:
    class Counter(nullcontext[Any]):
        def __init__(self, *_: object, initial: int = 0, **__: object) -> None:
            super().__init__(self)
            task.advance(initial)

        def update(self, amount: int) -> None:
            task.advance(amount)

    return Counter


def choose_files(repo: str, names: Iterable[str], wanted: str) -> list[str]:
    """The files of one model of a repository; ModelSourceError: none is meant, or several are.

    `wanted`: how it is stored or a file's name, in any case; "": safetensors, else the only GGUF model, else Q4_K_M.
    """
    files = sorted(names)
    if not wanted and any(name.endswith(".safetensors") for name in files):
        return [name for name in files if any(fnmatchcase(name, pattern) for pattern in TARGET)]
    ggufs = [name for name in files if is_model_file(Path(name))]
    if not ggufs:
        what = "no GGUF files" if wanted else "neither GGUF files nor safetensors"
        hint = f"To fetch its safetensors, name {repo} alone." if wanted else "Choose another model."
        raise ModelSourceError(f"{repo} holds {what}.", hint=hint)
    found = [name for name in ggufs if _is_meant(name, wanted)] if wanted else ggufs
    if not wanted and len(_models(found)) > 1:
        found = [name for name in ggufs if _is_meant(name, _USUAL)] or ggufs
    models = _models(found)
    if len(models) == 1:
        return found
    named = models or _models(ggufs)
    meant = f"{repo}:{wanted}" if wanted else repo
    what = f"{meant} may mean several models:" if found else f"{repo} holds no GGUF file {wanted!r}, only"
    raise ModelSourceError(f"{what} {', '.join(named)}.", hint=f"Name one of them, {repo}:{named[0]} for one.")


def _is_meant(name: str, wanted: str) -> bool:
    path = PurePosixPath(name)
    words = (name, path.name, model_name(Path(name)), storage_label(path.name) or "")
    return wanted.casefold() in (word.casefold() for word in words)


def _models(names: Sequence[str]) -> list[str]:
    return [path.as_posix() for path in first_parts([Path(name) for name in names])]


def hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _folder_of(repo_id: str) -> Path:
    return hub_cache() / f"{_REPOSITORY}{repo_id.replace('/', '--')}"


def hub_snapshots(cache: Path) -> Iterator[tuple[str, Path]]:
    """The snapshots of the hub's cache, each with its name: OWNER/NAME, with @REVISION unless it is the main one."""
    for repository in sorted(cache.glob(f"{_REPOSITORY}*")):
        name = repository.name.removeprefix(_REPOSITORY).replace("--", "/", 1)
        for revision, snapshot in _snapshots(repository).items():
            yield (name if revision == _MAIN else f"{name}@{revision}"), snapshot


def _snapshots(repository: Path) -> dict[str, Path]:
    refs, commits = repository / "refs", repository / "snapshots"
    found: dict[str, Path] = {}
    for ref in sorted(refs.rglob("*"), key=lambda path: (path != refs / _MAIN, path)):
        with suppress(OSError, ValueError):
            commit = ref.read_text("ascii").strip()
            snapshot = commits / commit
            if commit == Path(commit).name and snapshot.is_dir() and snapshot not in found.values():
                found[ref.relative_to(refs).as_posix()] = snapshot
    return found


@contextmanager
def _hub_errors(repo_id: str, revision: str, unreachable: str, hint: str) -> Iterator[None]:
    from huggingface_hub.errors import (
        GatedRepoError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings are lines between our sentences
    try:
        yield
    except GatedRepoError as error:
        hint = f"Accept them on the model's page and set HF_TOKEN, {_BRING}."
        raise ModelSourceError(f"The hub gives {repo_id} only to those who accepted its terms.", hint=hint) from error
    except RepositoryNotFoundError as error:
        hint = f"Check the id, set HF_TOKEN, {_BRING}."
        raise ModelSourceError(f"The hub has no model {repo_id} (or it is private).", hint=hint) from error
    except RevisionNotFoundError as error:
        raise ModelSourceError(f"{repo_id} has no revision {revision!r}.", hint="Check the revision.") from error
    except RemoteEntryNotFoundError as error:
        hint = f"Try again later, or another HF_ENDPOINT, {_BRING}."
        raise ModelSourceError(f"The hub lists a file of {repo_id} that it does not have (404).", hint=hint) from error
    except PermissionError as error:
        hint = "Set HF_HOME to a folder that you may write to."
        raise ModelSourceError(f"{error.filename} cannot be written: {error.strerror}.", hint=hint) from error
    except Exception as error:
        if is_disk_full(error):
            message = f"The disk of {hub_cache()} ran full while writing {repo_id}."
            raise DiskFullError(message, hint=_LARGER_DISK) from error
        if not _is_of_network(error):
            raise
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelSourceError(f"{unreachable}: {first_line.rstrip('.')}.", hint=hint) from error


def _is_of_network(error: Exception) -> bool:
    """Network failures of the client are OSErrors, or its HTTP library's own; anything else is a defect."""
    from huggingface_hub.errors import HfHubHTTPError

    libraries = ("httpx", "httpx2", "httpcore", "httpcore2")
    return isinstance(error, OSError | HfHubHTTPError) or type(error).__module__.partition(".")[0] in libraries
