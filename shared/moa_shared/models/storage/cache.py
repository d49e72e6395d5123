"""The cache folder: where models live, how they are made whole or not at all, and the hashes of what lies there.

An entry is a folder, built under a temporary name and renamed when complete, under a lock file: two processes do
not build it twice and none reads half of it. Its manifest says what it was made from, and the sha256 of each file.
State: hashes of files under `<cache>/hashes`, each while path, size, modification time and inode are the same.
Invariant: an entry that is used agrees with its manifest, in bytes whenever a file is not the very one hashed before.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal

from moa_shared.errors import ChecksumError, ConfigError, DiskFullError, NotFoundError
from moa_shared.plain_text import parse_json
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.progress import Progress

if TYPE_CHECKING:
    import filelock

SPARE_BYTES = 50_000_000  # left free besides what we write: a full disk stops everything else
POLL_SECONDS = 0.1  # how often a lock is tried that another process holds
_WAITING = "Waiting for another moa program, which is writing {}"


def cache_root(cache_dir: Path | None = None) -> Path:
    """The cache folder: the argument, else `MOA_CACHE_DIR`, else the user's cache folder; made where absent."""
    if cache_dir is None:
        import platformdirs

        cache_dir = Path(os.environ.get("MOA_CACHE_DIR") or platformdirs.user_cache_dir("moa", appauthor=False))
    root = cache_dir.expanduser().absolute()
    with writing(root, "the cache folder"):
        root.mkdir(parents=True, exist_ok=True)
    return root


def require_space(folder: Path, needed: int, purpose: str, hint: str | None = None) -> None:
    """Raises DiskFullError before writing if `folder`'s disk has less than `needed` bytes (and a little spare) free."""
    free = shutil.disk_usage(folder).free
    if free < needed + SPARE_BYTES:
        raise DiskFullError(
            f"{purpose} needs {decimal(needed + SPARE_BYTES)} in {folder}, where {decimal(free)} are free.", hint=hint
        )


@contextmanager
def locked(entry: Path, progress: Progress | None = None) -> Iterator[None]:
    """Hold the entry's lock file; another process that wants the same entry waits here, and says so."""
    lock = _lock_file(entry)
    if not _take(lock):
        with (progress or Progress()).task(_WAITING.format(entry)):
            lock.acquire(poll_interval=POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()


@asynccontextmanager
async def locked_meanwhile(
    entry: Path, progress: Progress, sleep: Callable[[float], Awaitable[None]]
) -> AsyncIterator[None]:
    """As `locked`, for an event loop that has other things to do while it waits; `sleep`: of that loop."""
    lock = _lock_file(entry)
    if not _take(lock):
        with progress.task(_WAITING.format(entry)):
            while not _take(lock):
                await sleep(POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()


def _lock_file(entry: Path) -> filelock.BaseFileLock:
    import filelock

    with writing(entry.parent, "a lock file"):
        entry.parent.mkdir(parents=True, exist_ok=True)
    return filelock.FileLock(entry.with_name(entry.name + ".lock"))


def _take(lock: filelock.BaseFileLock) -> bool:
    try:
        with writing(Path(lock.lock_file).parent, "a lock file"):
            lock.acquire(blocking=False)
    except TimeoutError:  # filelock's own
        return False
    return True


@contextmanager
def writing(folder: Path, purpose: str, needed: int | None = None) -> Iterator[None]:
    """A block that writes into a cache folder; DiskFullError: no room; ConfigError: the folder cannot be written."""
    try:
        yield
    except TimeoutError:  # an OSError too, but none of a disk
        raise
    except OSError as error:
        if is_disk_full(error):
            raise disk_full(folder, needed, purpose) from error
        raise ConfigError(
            f"The cache folder {folder} cannot be written: {error.strerror or error}.",
            hint="Set MOA_CACHE_DIR to a folder that you may write to.",
        ) from error


@contextmanager
def building(entry: Path, needed: int, purpose: str) -> Iterator[Path]:
    """A temporary folder that becomes `entry` when the block ends well, and disappears when it does not.

    Call under `locked(entry)`. An existing entry is replaced. DiskFullError: no room, seen before or while writing.
    """
    for left_over in entry.parent.glob(f"{entry.name}.part-*"):  # of a process that was killed; we hold the lock
        shutil.rmtree(left_over, ignore_errors=True)
    require_space(entry.parent, needed, purpose)
    with writing(entry.parent, purpose, needed):
        part = Path(tempfile.mkdtemp(prefix=f"{entry.name}.part-", dir=entry.parent))
    try:
        yield part
        if entry.exists():
            shutil.rmtree(entry)
        part.chmod(0o755)  # mkdtemp makes it private; a cache may be shared between users
        for path in part.iterdir():
            path.chmod(0o644)
        part.rename(entry)
    except Exception as error:
        if is_disk_full(error):
            raise disk_full(entry.parent, needed, purpose) from error
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def is_disk_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_full(folder: Path, needed: int | None, purpose: str) -> DiskFullError:
    amount = f"; {decimal(needed + SPARE_BYTES)} are needed in all" if needed is not None else ""
    return DiskFullError(f"The disk of {folder} ran full while writing {purpose}{amount}.")


_BAR_BYTES = 1_000_000_000  # sha256 does about 1 GB/s: below this there is nothing to wait for


def hash_file(path: Path, progress: Progress | None = None) -> str:
    size, digest = path.stat().st_size, hashlib.sha256()
    shown = progress if progress is not None and size >= _BAR_BYTES else Progress()
    with path.open("rb") as file, shown.task(f"Checking {path.name}", size, is_bytes=True) as task:
        while block := file.read(1 << 20):
            digest.update(block)
            task.advance(len(block))
    return digest.hexdigest()


def remembered_hash(path: Path, root: Path, progress: Progress | None = None) -> str:
    """sha256 (hex) of a file, from the record under `root` where the file is unchanged since; raises NotFoundError."""
    try:
        stat = path.stat()
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no file {path}.") from error
    identity = [str(path.absolute()), stat.st_size, stat.st_mtime_ns, stat.st_ino]
    key = hashlib.sha256(str(identity[0]).encode()).hexdigest()[:32]
    known = recall(root, key)
    if known.get("identity") == identity and isinstance(known.get("sha256"), str):
        return str(known["sha256"])
    digest = hash_file(path, progress)
    remember(root, key, {"identity": identity, "sha256": digest})
    return digest


def canonical_json(value: object) -> bytes:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    except RecursionError:
        raise ValueError("the value is nested too deeply") from None


def combine(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def recall(root: Path, key: str) -> dict[str, Any]:
    """The record of that name under `root`; empty where there is none, or a damaged one."""
    with suppress(OSError, ValueError):  # then it is computed again
        known = parse_json((root / "hashes" / f"{key}.json").read_text("utf-8"))
        return known if isinstance(known, dict) else {}
    return {}


def remember(root: Path, key: str, content: dict[str, Any]) -> None:
    record = root / "hashes" / f"{key}.json"  # it only saves time: on a full disk the next start computes again
    with suppress(OSError), whole_file(record, several_writers=True) as partial:
        partial.write_bytes(json.dumps(content).encode())


MANIFEST = "manifest.json"
FORMAT = 8  # raise when what an entry holds changes: older entries are then no longer found


def write_manifest(folder: Path, target_id: str, source: str) -> None:
    """Record the files of `folder`, read back from the disk. `source`: the hash of what the entry is made from."""
    files = {path.name: {"sha256": hash_file(path)} for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    content = {"format": FORMAT, "target_id": target_id, "source": source, "files": files}
    (folder / MANIFEST).write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def check_manifest(folder: Path, root: Path, progress: Progress | None = None) -> str:
    """Check an entry against its manifest and return its target id."""
    hint = f"Delete {folder}; it is built again at the next start."
    try:
        content = parse_json((folder / MANIFEST).read_text("utf-8"))
        target_id = str(content["target_id"])
        expected = {str(name): str(record["sha256"]) for name, record in content["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ChecksumError(f"The manifest of {folder} cannot be read: {error}.", hint=hint) from error
    for name, sha256 in expected.items():
        path = folder / name
        if not path.is_file():
            raise ChecksumError(f"{path} is missing.", hint=hint)
        if (digest := remembered_hash(path, root, progress)) != sha256:
            raise ChecksumError(f"{path} has the sha256 {digest}, expected {sha256}.", hint=hint)
    return target_id
