import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from moa_shared.errors import ConfigError, DataError
from moa_training.cli import cli
from moa_training.report import read_evaluation


def evaluation(length: float, **more: Any) -> dict[str, Any]:
    means = {"agreement_8": 0.5, "agreement_16": 0.25, "repeated": 0.75, "target_repeated": 0.1, "log_likelihood": -1.5}
    shapes = {"chain of 5": {"acceptance_length": length, "draft_ms": 10.0}}
    return {"shapes": shapes, "standalone": dict.fromkeys(("8", "32", "64"), means), **more}


def by_share() -> dict[str, Any]:
    shares = {
        f"0.{tenth}": {"agreement_8": 0.5, "served": tenth / 10, "in_hand": tenth / 10 + 0.05} for tenth in range(10)
    }
    sums = {"questions": 3, "right": 0.5, "same_result": 0.75, "target_right": 1.0, "ended": 1.0}
    sums |= {"served_right": 0.25, "served_same_result": 0.125}
    task = {share: {"sums": sums, "none": {"questions": 0}} for share in shares}
    return evaluation(2.0, shares=shares, all_shares=shares["0.9"], cold=shares["0.9"], task=task)


def test_evaluations_side_by_side(tmp_path: Path) -> None:
    for name, content in (("a", by_share()), ("c", evaluation(1.5)), ("bad", {"shapes": {}})):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    arguments = [*(f"{name}={tmp_path / name}.json" for name in "ac"), "--picture", str(tmp_path / "p.png")]
    result = CliRunner().invoke(cli, ["compare", *arguments, "--forward-ms", "40", "--node-ms", "2"])
    assert result.exit_code == 0
    for line in (
        "| c | chain of 5 | 1.500 | 10.0 | 1.00 |",
        "| c | 64 tokens |  | 0.50 | 0.25 |  |  | -1.50 | 0.75 | 0.10 |  |  |  |",
        "| a | 0.3 | 0.35 | 0.50 |  |  |  |  |  |  |  |  |  |",
        "| API client | 0.3 | 0.30 | 0.00 | 0.00 | 0.00 |  |  |  |  | 0.00 | 0.00 |  |",
        "| a | 0.3 | 0.50 | 0.75 | 1.00 | 1.00 |",
        "| API client | 0.3 | 0.25 | 0.12 | 1.00 |  |",
    ):
        assert line in result.output.splitlines()
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    for path in (tmp_path / "bad.json", tmp_path / "none.json"):
        with pytest.raises(DataError, match="no evaluation"):
            read_evaluation(path)
    assert isinstance(CliRunner().invoke(cli, ["compare", "file.json"]).exception, ConfigError)
