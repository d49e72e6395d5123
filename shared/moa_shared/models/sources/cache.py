"""The cache folder: where models live, and how they are made whole or not at all.

An entry is a folder. It is built under a temporary name next to its final one and renamed when complete, under a lock
file, so that two processes do not build it twice and none ever reads half an entry.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal

from moa_shared.errors import ConfigError, DiskFullError
from moa_shared.programs.progress import Progress, SilentProgress

if TYPE_CHECKING:
    import filelock

SPARE_BYTES = 50_000_000  # left free besides what we write: a full disk stops everything else
POLL_SECONDS = 0.1  # how often a lock is tried that another process holds


def cache_root(cache_dir: Path | None = None) -> Path:
    """The cache folder: the argument, else `MOA_CACHE_DIR`, else the user's cache folder; made where absent."""
    if cache_dir is None:
        named = os.environ.get("MOA_CACHE_DIR")
        if named:
            cache_dir = Path(named)
        else:
            import platformdirs

            cache_dir = Path(platformdirs.user_cache_dir("moa", appauthor=False))
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
        with (progress or SilentProgress()).task(_waiting_for(entry)):
            lock.acquire(poll_interval=POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()


@asynccontextmanager
async def locked_meanwhile(entry: Path, progress: Progress) -> AsyncIterator[None]:
    """As `locked`, for an event loop that has other things to do while it waits."""
    lock = _lock_file(entry)
    if not _take(lock):
        with progress.task(_waiting_for(entry)):
            while not _take(lock):  # noqa: ASYNC110 (another process cannot set an event)
                await asyncio.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()


def is_being_written(entry: Path) -> bool:
    lock = _lock_file(entry)
    if is_free := _take(lock):
        lock.release()
    return not is_free


def _lock_file(entry: Path) -> filelock.BaseFileLock:
    import filelock

    with writing(entry.parent, "a lock file"):
        entry.parent.mkdir(parents=True, exist_ok=True)
    return filelock.FileLock(entry.with_name(entry.name + ".lock"))


def _take(lock: filelock.BaseFileLock) -> bool:
    import filelock

    try:
        with writing(Path(lock.lock_file).parent, "a lock file"):
            lock.acquire(blocking=False)
    except filelock.Timeout:
        return False
    return True


def _waiting_for(entry: Path) -> str:
    return f"Waiting for another moa program, which is writing {entry}"


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
            if path.stat().st_nlink == 1:  # the mode of a hard link is its owner's affair
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
