"""What deploy/ says: the compose file and the recipe of the images, read for tests."""

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
RECIPE = DEPLOY / "Containerfile"
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def read_compose() -> dict[str, Any]:
    """The compose file with the defaults of its variables."""
    filled = VARIABLE.sub(lambda found: found[2] or "", COMPOSE.read_text())
    document: dict[str, Any] = yaml.safe_load(filled)
    return document


def instructions(image: str) -> Sequence[tuple[str, str]]:
    """The instructions of an image and of the stages that it begins from, each with what follows it on all its lines."""
    lines = [line for line in RECIPE.read_text().splitlines() if not line.startswith("#")]
    stages: dict[str, list[tuple[str, str]]] = {}
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages[name] = [*stages.get(base, [])]
        elif word and stages:
            stages[name].append((word, rest.strip()))
    return stages[image]


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
