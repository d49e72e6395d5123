from __future__ import annotations

import subprocess
import sys

from moa_shared.programs.entry import prepare_process


def test_a_folder_of_the_environment_that_is_relative_is_ignored() -> None:
    environment = {"XDG_DATA_HOME": "data", "XDG_STATE_HOME": "", "XDG_CACHE_HOME": "/cache", "HOME": "home"}
    prepare_process(environment)
    assert environment == {"XDG_CACHE_HOME": "/cache", "HOME": "home"}


def test_programs_of_one_machine_have_no_proxy_between_them() -> None:
    environment = {"ALL_PROXY": "http://proxy:1"}
    prepare_process(environment)
    assert "127.0.0.1" in environment["no_proxy"].split(",")


def test_memory_is_not_searched_for_garbage_at_the_end() -> None:
    code = (
        "import atexit, gc; from moa_shared.programs.entry import prepare_process\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 0))\n"
        "prepare_process()"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout == b"True\n"
