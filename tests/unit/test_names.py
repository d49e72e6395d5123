"""Names of classes: one that two packages define makes a reader ask which is meant, so few may."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("bench", "client", "kernels", "netsim", "server", "shared", "training")
MOST_DEFINED_TWICE = 19  # above all forms and requests of the endpoint's APIs, which are named as these call them


def test_few_names_of_classes_are_defined_twice() -> None:
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    names = Counter(
        re.findall(r"^\s*class (\w+)", "\n".join(path.read_text("utf-8") for path in sources), re.MULTILINE)
    )
    assert len(names) > 500
    assert len([name for name, count in names.items() if count > 1]) <= MOST_DEFINED_TWICE
