"""What an environment holds, and what its bill of materials says it holds."""

from __future__ import annotations

import json

# Run by the environment's Python.
LIST = """
import json
from importlib.metadata import distributions
print(json.dumps(sorted({(each.name.lower(), each.version) for each in distributions()})))
"""


def installed(listed: str) -> set[tuple[str, str]]:
    """Names and versions from what LIST printed."""
    return {(name, version) for name, version in json.loads(listed)}


def named(bill: str) -> set[tuple[str, str]]:
    """Names and versions in a bill of materials."""
    return {(each["name"].lower(), each["version"]) for each in json.loads(bill)["components"]}
