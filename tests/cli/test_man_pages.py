"""The manual pages, as `make man` writes them."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import CHECKOUT


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """All pages."""
    spec = importlib.util.spec_from_file_location("man_pages", CHECKOUT / "docs" / "man_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages: list[Path] = module.write_pages(tmp_path_factory.mktemp("man"))
    return pages


def test_each_program_and_command_has_a_page(written: list[Path]) -> None:
    names = {page.name for page in written}
    assert names > {"moa-client.1", "moa-client-chat.1", "moa-server-serve.1", "moa-train-fit.1", "netsim-run.1"}
    assert {page.parent.name for page in written} == {"man1"}


@pytest.mark.skipif(shutil.which("groff") is None, reason="needs groff")
def test_troff_has_nothing_to_say_against_them(written: list[Path]) -> None:
    done = subprocess.run(
        ["groff", "-K", "utf8", "-man", "-ww", "-z", *map(str, written)], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
