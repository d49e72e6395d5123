"""What deploy/ says: the compose file and the recipes of the images, read for tests."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.support.programs import CHECKOUT

DEPLOY = CHECKOUT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def read_compose() -> dict[str, Any]:
    """The compose file with the defaults of its variables."""
    filled = VARIABLE.sub(lambda found: found[2] or "", COMPOSE.read_text())
    document: dict[str, Any] = yaml.safe_load(filled)
    return document


def compose_variables() -> set[str]:
    """The variables that the compose file takes from the shell."""
    return {found[1] for found in VARIABLE.finditer(COMPOSE.read_text())}


def instructions(image: str) -> Sequence[tuple[str, str]]:
    """The instructions of an image's recipe, each with what follows it on all its lines."""
    text = recipe(image).read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in whole.splitlines()) if word]


def recipe(image: str) -> Path:
    """The file that an image is built from."""
    return DEPLOY / "server/Containerfile.cuda" if image == "cuda" else DEPLOY / image / "Containerfile"


def last(image: str, word: str) -> str:
    """What the last instruction of this kind says."""
    return [rest for each, rest in instructions(image) if each == word][-1]


def variables(image: str) -> Mapping[str, str]:
    """The environment of an image."""
    pairs = (word.partition("=") for each, rest in instructions(image) if each == "ENV" for word in shlex.split(rest))
    return {name: value for name, _, value in pairs}


def program(image: str) -> str:
    """What an image runs: the name of a program of ours."""
    words: list[str] = json.loads(last(image, "ENTRYPOINT"))
    return Path(words[0]).name
