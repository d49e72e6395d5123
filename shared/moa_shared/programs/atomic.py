"""Files that are there whole or not at all, and whether one that holds a secret is closed to others."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path, *, several_writers: bool = False, durable: bool = False) -> Iterator[Path]:
    """Gives a temporary path next to `path`, which takes its place when the block ends; if it fails, nothing changes.

    `several_writers`: at the same time, and the last one to end wins; one that is killed leaves its temporary file,
    which otherwise the next one overwrites. `durable`: the content is on the disk before the name is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    if several_writers:
        handle, name = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".partial", dir=path.parent)
        os.fchmod(handle, 0o644)  # mkstemp makes it private; a cache may be shared between users
        os.close(handle)
        partial = Path(name)
    try:
        yield partial
        if durable:
            with partial.open("rb") as file:
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_private(path: Path, content: bytes) -> None:
    """Replaces a file, whole, by one that only its owner may read.

    What root replaces keeps its owner and, if that is root, a group that may read it: a server that runs as a user of
    its own can read what root has changed.
    """
    before = path.stat() if os.geteuid() == 0 and path.exists() else None
    with whole_file(path, durable=True) as partial:
        partial.unlink(missing_ok=True)  # that of a killed writer may be another's to read
        create_private(partial, content, before)


def create_private(path: Path, content: bytes, like: os.stat_result | None = None) -> None:
    """Writes a new file that only its owner may read, from its first byte on.

    `like`: whose owner it has once it is written and, if that is root, the group that may read it; for root only.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
        if like is not None:
            os.fchown(handle, like.st_uid, like.st_gid)
            if like.st_uid == 0 and stat.S_IMODE(like.st_mode) == 0o640:
                os.fchmod(handle, 0o640)


def open_to_others(found: os.stat_result) -> bool:
    """Whether others than this process's user may use a file of secrets; the rule is that of PostgreSQL.

    One of root may be readable for a group, as ssl-cert, systemd's credentials and Kubernetes' Secrets have it.
    """
    of_root = found.st_uid == 0 and os.geteuid() != 0
    shared = stat.S_IRWXO | stat.S_IWGRP | stat.S_IXGRP if of_root else stat.S_IRWXO | stat.S_IRWXG
    return bool(stat.S_IMODE(found.st_mode) & shared)
