from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from moa_shared.programs import missing_packages
from moa_shared.programs.missing_packages import (
    EXTRAS,
    install_drafters,
    install_extra,
    missing_extra,
)

from tests.support.messages import steady
from tests.support.programs import CHECKOUT

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
PIP = f"{sys.executable} -m pip install "


def test_a_module_is_named_by_its_extra() -> None:
    told = missing_extra(ModuleNotFoundError("No module named 'zstandard'", name="zstandard.backend"))
    assert told is not None
    assert steady(str(told)) == (
        "This needs zstandard, which is not installed. Install it: PYTHON -m pip install --editable 'CHECKOUT[train]'."
    )


def test_a_module_of_ours_that_is_missing_is_a_defect() -> None:
    assert missing_extra(ModuleNotFoundError("No module named 'moa_x'", name="moa_x")) is None


@pytest.mark.parametrize("extra", sorted(set(EXTRAS.values())))
def test_the_extras_are_those_of_the_package(extra: str) -> None:
    assert extra in PROJECT["optional-dependencies"]


@pytest.mark.parametrize(
    ("told", "extra", "drafters"),
    [
        (
            {"url": "file://TMP/my%20checkout", "dir_info": {"editable": True}},
            "--editable 'TMP/my checkout[mcp]'",
            "--editable 'TMP/my checkout/drafters'",
        ),
        ({"url": "file://TMP/my%20checkout", "dir_info": {}}, "'TMP/my checkout[mcp]'", "'TMP/my checkout/drafters'"),
        (
            {"url": "file://TMP/dist/moa_split-1-py3.whl", "archive_info": {}},
            "'TMP/dist/moa_split-1-py3.whl[mcp]'",
            "TMP/dist/moa_split_drafters-2-py3.whl",
        ),
        (
            {"url": "https://x.example/moa_split-1-py3.whl", "archive_info": {}},
            "'moa-split[mcp] @ https://x.example/moa_split-1-py3.whl'",
            "moa_split_drafters-*.whl, with that file of the release",
        ),
        (
            {"url": "https://x.example/moa", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "'moa-split[mcp] @ git+https://x.example/moa@abc'",
            "moa_split_drafters-*.whl, with that file of the release",
        ),
        (
            {"url": "file:///gone/moa_split-1-py3.whl", "archive_info": {}},
            "'WHEEL[mcp]', with the path of moa's wheel for WHEEL",
            "moa_split_drafters-*.whl, with that file of the release",
        ),
        (
            None,
            "'WHEEL[mcp]', with the path of moa's wheel for WHEEL",
            "moa_split_drafters-*.whl, with that file of the release",
        ),
    ],
)
def test_a_hint_is_for_this_installation(
    told: object, extra: str, drafters: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my checkout" / "drafters").mkdir(parents=True)
    (tmp_path / "dist").mkdir()
    for name in ("moa_split-1-py3.whl", "moa_split_drafters-2-py3.whl"):
        (tmp_path / "dist" / name).touch()
    text = json.dumps(told).replace("TMP", str(tmp_path)) if told else None
    found = [SimpleNamespace(read_text={"direct_url.json": each}.get) for each in (None, text)]  # a checkout's first
    monkeypatch.setattr(missing_packages, "distributions", lambda name: found)
    monkeypatch.setattr(missing_packages, "find_spec", lambda _: True)
    commands = (install_extra("mcp"), install_drafters())
    assert commands == tuple(PIP + each.replace("TMP", str(tmp_path)) for each in (extra, drafters))
