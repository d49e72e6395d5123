"""Pictures of results as PNG files: matplotlib without a display, loaded when the first one is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moa_shared.errors import ConfigError


def new_pyplot() -> Any:
    """The module `matplotlib.pyplot`.

    Raises:
        ConfigError: matplotlib is not there.
    """
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError:
        raise ConfigError("Pictures need matplotlib.", hint='Install it: pip install "moa[report]".') from None
    return pyplot


def save(figure: Any, path: Path) -> Path:
    """Writes a figure and closes it; gives the path back.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        new_pyplot().close(figure)
    return path
