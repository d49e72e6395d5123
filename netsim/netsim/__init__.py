"""netsim: links that behave like 4G, 5G and yesterday's train ride, for any TCP client and server.

`open_link` gives a running link, as an async context manager; it is imported when first used, so that the command line
starts quickly. `netsim.core.link.LinkModel` is the pure core.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netsim.run.control import LinkHandle, open_link

__all__ = ["LinkHandle", "open_link"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'netsim' has no attribute {name!r}")
    return getattr(import_module("netsim.run.control"), name)
