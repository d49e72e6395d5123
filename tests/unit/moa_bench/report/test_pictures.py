"""Pictures: what a user hears if matplotlib is not there, or the file cannot be written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_bench.report.pictures import picture
from moa_shared.errors import ConfigError

from tests.support.messages import raises


def test_without_matplotlib_a_user_hears_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with (
        raises(
            ConfigError,
            snapshot("Pictures need matplotlib. Install it: PYTHON -m pip install --editable 'CHECKOUT[report]'."),
        ),
        picture(tmp_path / "picture.png", "A title", (4, 3)),
    ):
        pass


def test_a_picture_that_cannot_be_written_is_one_sentence_and_leaves_no_figure(tmp_path: Path) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match="cannot be written"),
        picture(tmp_path / "file" / "picture.png", "A title", (4, 3)),
    ):
        pass
    assert not pyplot.get_fignums()
