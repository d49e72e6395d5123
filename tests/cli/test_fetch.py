from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner
from inline_snapshot import snapshot
from moa_server.cli import cli
from moa_shared.errors import ModelSourceError, NotFoundError
from moa_shared.models import ModelFiles

from tests.support.messages import steady


def test_fetch_prints_the_folder(default_model_files: ModelFiles) -> None:
    result = CliRunner().invoke(cli, ["fetch"])
    assert result.exit_code == 0
    assert Path(result.stdout.strip().splitlines()[-1]) == default_model_files.folder


def test_fetch_of_nothing_says_so(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["fetch", str(tmp_path / "none.gguf")])
    assert isinstance(result.exception, (ModelSourceError, NotFoundError))
    assert steady(str(result.exception)) == snapshot("There is no file TMP/none.gguf. Check the name.")
