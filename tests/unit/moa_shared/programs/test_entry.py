from __future__ import annotations

from moa_shared.programs.entry import prepare_process


def test_a_folder_of_the_environment_that_is_relative_is_ignored() -> None:
    environment = {"XDG_DATA_HOME": "data", "XDG_STATE_HOME": "", "XDG_CACHE_HOME": "/cache", "HOME": "home"}
    prepare_process(environment)
    assert environment == {"XDG_CACHE_HOME": "/cache", "HOME": "home"}
