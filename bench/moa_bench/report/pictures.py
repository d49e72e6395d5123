"""Pictures of results as PNG files: matplotlib without a display, loaded when the first one is drawn."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moa_shared.errors import ConfigError
from moa_shared.programs.missing_packages import install_extra


@contextmanager
def picture(path: Path, title: str, size: tuple[float, float], panels: int = 1) -> Iterator[tuple[Any, list[Any]]]:
    """A figure and its panels in a row, each with a grid; written when the block ends."""
    try:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot
    except ImportError:
        raise ConfigError("Pictures need matplotlib.", hint=f"Install it: {install_extra('report')}.") from None
    figure, axes = pyplot.subplots(1, panels, figsize=size, layout="constrained", squeeze=False)
    try:
        for panel in axes[0]:
            panel.grid(alpha=0.3)
        figure.suptitle(title, fontsize=10)
        yield figure, list(axes[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from error
    finally:
        pyplot.close(figure)


def title_of(result: Mapping[str, Any]) -> str:
    return f"{result['target']} on one core of {result['machine']['cpu']}"
