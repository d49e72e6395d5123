"""Files of a drafter are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from moa_shared.errors import CheckpointError, DiskFullError
from moa_shared.programs.atomic import whole_file

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def whole_checkpoint(path: Path, what: str) -> Iterator[Path]:
    """Gives a temporary path next to `path`, which takes its place when the block ends.

    Args:
        what: it is, for messages.

    Raises:
        CheckpointError: the path cannot be written.
        DiskFullError: no room.
    """
    try:
        with whole_file(path) as partial:
            yield partial
    except OSError as error:
        message = f"The {what} {path} cannot be written ({error})."
        if error.errno in _FULL:
            raise DiskFullError(message) from None
        raise CheckpointError(message, hint="Choose a folder that can be written.") from None
