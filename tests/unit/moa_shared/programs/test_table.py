from __future__ import annotations

from inline_snapshot import snapshot
from moa_shared.programs.table import table


def test_cells_are_below_each_other() -> None:
    assert table([("name", "MB", ""), ("a", "1000", "x"), ("longer", "7", "")], right=(1,)) == snapshot("""\
name      MB
a       1000  x
longer     7
""")
