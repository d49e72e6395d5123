"""netsim: links that behave like 4G, 5G and yesterday's train ride, for any TCP client and server.

Names are imported when first used, so that the command line starts quickly: `open_link` (a running link, as an async
context manager), `LinkModel` and its values (the pure core), `load_profile`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netsim.core.link import Direction, Drop, LinkModel, Reason, Release
    from netsim.profile.profiles import load as load_profile
    from netsim.run.process import LinkHandle, open_link

_HOMES = {
    "Direction": "netsim.core.link",
    "Drop": "netsim.core.link",
    "LinkHandle": "netsim.run.process",
    "LinkModel": "netsim.core.link",
    "Reason": "netsim.core.link",
    "Release": "netsim.core.link",
    "load_profile": "netsim.profile.profiles",
    "open_link": "netsim.run.process",
}

__all__ = ["Direction", "Drop", "LinkHandle", "LinkModel", "Reason", "Release", "load_profile", "open_link"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'netsim' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), "load" if name == "load_profile" else name)
