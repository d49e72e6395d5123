"""The manual pages, as `make man` writes them."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.support.programs import CHECKOUT


def test_each_program_and_command_has_a_page_in_which_troff_finds_no_mistake(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("man_pages", CHECKOUT / "docs" / "man_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages: list[Path] = module.write_pages(tmp_path)
    names = {page.name for page in pages if page.parent.name == "man1"}
    assert names > {"moa-client.1", "moa-client-chat.1", "moa-server-serve.1", "moa-train-fit.1", "netsim-run.1"}
    if shutil.which("groff") is not None:
        command = ["groff", "-K", "utf8", "-man", "-ww", "-z", *map(str, pages)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
