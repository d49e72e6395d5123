"""The server with `--drafter auto`: what it takes, and what becomes of the drafter's trial."""

from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_server.loading import AUTO, drafter_paths, load_host
from moa_server.observing.observing import read_host
from moa_server.settings import ServerSettings
from moa_shared.drafting.estimates import TRIAL_TOKENS
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles
from moa_shared.programs.progress import SilentProgress
from structlog.testing import capture_logs

from tests.support.model_places import places, put_into_hub  # noqa: F401 (a fixture)
from tests.support.published_drafters import EAGLE_CONFIG, eagle_tensors, publish, save_llama3

pytestmark = pytest.mark.torch


def test_the_default_is_auto_and_takes_what_is_shipped(default_model_files: ModelFiles) -> None:
    assert ServerSettings().drafter == AUTO
    assert [name for name, _ in drafter_paths(AUTO, default_model_files)] == ["default", "deep"]


def test_a_drafter_of_the_hubs_cache_is_served_and_dropped_by_its_trial(
    places: dict[str, Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    model, cache = save_llama3(tmp_path / "tiny-llama3"), tmp_path / "cache"
    named = {"speculators_config": {"verifier": {"name_or_path": "owner/tiny-llama3"}}}
    folder = publish(tmp_path / "eagle", eagle_tensors(), EAGLE_CONFIG | named)
    put_into_hub(places["hub"], "owner/eagle", {path.name: path for path in folder.iterdir()})
    settings = ServerSettings(model=str(model), execution="int8", threads=1, port=0, cache_dir=cache)
    host = load_host(settings, SilentProgress())
    assert [each.name for each in host.services.served.drafters] == ["eagle"]
    assert read_host(host, None)["moa_drafter_dropped"] == {"eagle": False}
    [source] = host.services.engine.stepper.sources
    assert source.drafter is not None
    with capture_logs() as logs:
        for _ in range(TRIAL_TOKENS):
            source.drafter.trial.add(1, 2, 1)
    assert read_host(host, None)["moa_drafter_dropped"] == {"eagle": True}
    assert logs == snapshot(
        [
            {
                "drafter": "eagle",
                "target": "tiny-llama3",
                "figures": "right in 0 of 200 tokens, what the text repeats in 200",
                "event": "the drafter guesses worse than look-up and is dropped: is it for this model?",
                "log_level": "warning",
            }
        ]
    )


def test_a_budget_that_holds_no_conversation_is_refused(tmp_path: Path) -> None:
    model = save_llama3(tmp_path / "tiny-llama3")
    settings = ServerSettings(model=str(model), drafter="none", execution="int8", kv_bytes=10, cache_dir=tmp_path)
    with pytest.raises(ConfigError, match="holds no conversation: one of"):
        load_host(settings, SilentProgress())
