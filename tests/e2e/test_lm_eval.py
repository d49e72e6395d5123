"""lm-eval over the daemon's endpoint, on a link that breaks: the log likelihoods of transformers on the same questions."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import pytest
from moa_bench.harness.links import find_links, linked

from tests.e2e.lm_eval.evaluate import BATCH
from tests.support.daemon_home import daemon_home
from tests.support.skipping import cannot_run

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("real target"), pytest.mark.long, pytest.mark.torch]
EVALUATE = Path(__file__).parent / "lm_eval" / "evaluate.py"
QUESTIONS = 6
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def evaluating(cache: Path, url: str) -> subprocess.Popen[bytes]:
    """lm-eval in a process of its own, whose warnings are not ours."""
    return subprocess.Popen(
        [sys.executable, str(EVALUATE), "--limit", str(QUESTIONS), url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | OFFLINE | {"HF_HOME": str(cache), "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"},
    )


def wait_for_answers(progress: IO[bytes]) -> None:
    """Returns when the first request was answered."""
    shown = b""
    while piece := os.read(progress.fileno(), 4096):
        shown += piece
        if re.search(rb"Requesting API.* [1-9]\d*/%d" % (4 * QUESTIONS // BATCH), shown):
            return
    pytest.fail(shown.decode())


def found_by(process: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    out, err = process.communicate()
    assert process.returncode == 0, err.decode()
    return [json.loads(line) for line in out.splitlines()]


def test_likelihoods_are_those_of_transformers(float32_server: str, tmp_path: Path) -> None:
    if find_spec("lm_eval") is None:
        cannot_run("lm-eval is not installed: make test-torch")
    with (
        linked(find_links(("4G",))[0], float32_server) as link,
        daemon_home(dict(os.environ), SERVER=link.address, ALONE="never") as home,
    ):
        assert home.run("daemon", "start")[0] == 0
        with evaluating(tmp_path, home.status()["url"]) as process:
            assert process.stderr is not None
            wait_for_answers(process.stderr)
            link.cut(0.7)
            over_the_endpoint, expected = found_by(process)
    assert over_the_endpoint["results"] == expected["results"]
    for choices, theirs in zip(over_the_endpoint["likelihoods"], expected["likelihoods"], strict=True):
        assert [greedy for _, greedy in choices] == [greedy for _, greedy in theirs]
        assert [value for value, _ in choices] == pytest.approx([value for value, _ in theirs], abs=1e-3)
