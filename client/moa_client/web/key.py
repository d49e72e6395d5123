"""The key that requests must show: from a file that only its owner can read, or from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from moa_shared.errors import ConfigError

from moa_client.servers.keys import read_key_file

VARIABLE = "MOA_ENDPOINT_KEY"
FEWEST_CHARACTERS = 16
# What may be a part of a WebSocket's subprotocol, by which a page sends it.
_KEY = re.compile(r"[A-Za-z0-9._~+-]+")


def read_key(path: Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """The key; empty: none is needed.

    Args:
        path: of the file; None: the environment may have one.
    """
    if path is not None:
        key, source = read_key_file(path), f"The key file {path}"
    elif VARIABLE in environment:
        key, source = environment[VARIABLE], VARIABLE
    else:
        return ""
    if len(key) < FEWEST_CHARACTERS or not _KEY.fullmatch(key):
        raise ConfigError(
            f"{source} has no key of at least {FEWEST_CHARACTERS} letters, digits and ._~+-",
            hint="Make one: openssl rand -hex 32",
        )
    return key
