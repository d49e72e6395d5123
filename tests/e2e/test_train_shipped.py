"""The drafters that come with moa: of the default target, small, with their cards, and accepted."""

from pathlib import Path

import pytest
from moa_shared.drafter.checkpoint import DEEP_DRAFTER, SHIPPED_DRAFTERS, shipped_drafter
from moa_shared.models import ModelFiles
from moa_shared.programs.progress import Progress
from moa_training.evaluation.evaluation import evaluate, load_fitting_checkpoint
from moa_training.settings import EvaluationOptions

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", SHIPPED_DRAFTERS)
def test_the_default_target_has_small_drafters_with_cards(default_model_files: ModelFiles, name: str) -> None:
    path = shipped_drafter(default_model_files.fingerprint, name)
    assert path is not None
    assert path.stat().st_size <= 20e6
    card = (path.parent / "README.md").read_text()
    assert default_model_files.fingerprint[:16] in card
    assert "tokens seen" in card
    config = load_fitting_checkpoint(path, default_model_files).config
    assert config.vocab_size == default_model_files.config["vocab_size"]
    assert (config.reused_layers >= 6) == (name == DEEP_DRAFTER)


@pytest.mark.timeout(300)
def test_its_guesses_are_accepted(shared_dir: Path) -> None:
    questions = shared_dir / "data" / "eval" / "gsm8k.jsonl"
    options = EvaluationOptions(limit=3, answer_tokens=48, depth=4, breadth=4, nodes=16, standalone=0)
    result = evaluate("default", questions, options, Progress())
    assert result["questions"] == 3
    assert result["shapes"]["chain of 5"]["acceptance_length"] > 1.1  # an untrained one: 1.00
    assert result["acceptance_length"] > 1.3
