"""Finds profiles: those that come with netsim by name, others by their file's path (YAML or TOML)."""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from netsim.errors import ProfileError
from netsim.profile.profile import Profile

SUFFIXES = (".yaml", ".yml", ".toml")
_FOLDER = files("netsim.profile") / "profiles"


@cache
def names() -> tuple[str, ...]:
    """Names of the profiles that come with netsim, sorted."""
    return tuple(sorted(Path(entry.name).stem for entry in _FOLDER.iterdir() if entry.name.endswith(".yaml")))


def load(name: str) -> Profile:
    """The profile of that name, or in that file; raises ProfileError."""
    if name in names():
        return parse((_FOLDER / f"{name}.yaml").read_text(), name)
    if name.endswith(SUFFIXES) or "/" in name:
        path = Path(name)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text in UTF-8"
            raise ProfileError(f"Profile {name} cannot be read: {why}.") from error
        return parse(text, name)
    near = get_close_matches(name.lower(), names(), n=3, cutoff=0.4)
    offer = f"Did you mean {' or '.join(near)}?" if near else f"There are {', '.join(names())}."
    raise ProfileError(
        f"There is no profile {name!r}.",
        hint=f"{offer} A profile of your own is given by its file, for example ./my.yaml.",
    )


def parse(text: str, source: str) -> Profile:
    """Reads YAML, or TOML if `source` ends in .toml; raises ProfileError with field and reason."""
    try:
        document: Any = tomllib.loads(text) if source.endswith(".toml") else yaml.safe_load(text)
    except (tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise ProfileError(f"Profile {source} cannot be parsed: {' '.join(str(error).split())}") from error
    if not isinstance(document, dict):
        raise ProfileError(f"Profile {source} holds no fields.", hint="`netsim show 4g` prints one to start from.")
    if "basis" not in document:
        raise ProfileError(
            f"Profile {source} does not say its basis.",
            hint="Add `basis: one_way` if the delay is that of each direction, `basis: rtt` if it is the round trip's.",
        )
    try:
        return Profile.model_validate(document)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'profile'}: {item['msg']}" for item in error.errors()
        )
        raise ProfileError(
            f"Profile {source} is not valid: {problems}.", hint="docs/netsim.md describes every field."
        ) from error
