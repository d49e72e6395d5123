"""What of a schema can be enforced where calls are not JSON. Pure.

Nothing is loosened: what cannot be enforced is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from moa_shared.errors import ConfigError

from moa_client.tools.formats.argument_types import type_of

DESCRIBING = frozenset({"type", "title", "description", "default", "examples", "deprecated", "$comment", "$schema"})


def check_keywords(place: str, schema: Mapping[str, Any], known: AbstractSet[str]) -> None:
    """Checks that a schema uses nothing but these keywords, and those that only describe.

    Args:
        place: of the schema, for errors.

    Raises:
        ConfigError: it does, or requires what it does not describe.
    """
    if unknown := [key for key in schema if key not in known | DESCRIBING]:
        raise refusal(f"uses {', '.join(unknown)}", place)
    if missing := [name for name in schema.get("required", []) if name not in schema.get("properties", {})]:
        raise refusal(f"requires {', '.join(missing)} without a schema for it", place)


def choices_of(place: str, schema: Mapping[str, Any], types: AbstractSet[str]) -> list[Any] | None:
    """The values of these types that a schema lists; None: it lists none.

    Raises:
        ConfigError: it allows no value.
    """
    if "const" not in schema and "enum" not in schema:
        return None
    listed = [schema["const"]] if "const" in schema else schema["enum"]
    if not (choices := [value for value in listed if type_of(value) in types]):
        raise refusal("allows no value", place)
    return choices


def refusal(problem: str, place: str) -> ConfigError:
    """Why a schema cannot be enforced."""
    return ConfigError(
        f"The schema of {place} {problem}, which cannot be enforced in this model's form of calls.",
        hint="Change it, or do not require a call.",
    )
