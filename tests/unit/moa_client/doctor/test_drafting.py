"""What the doctor says of a companion."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.device.sources import Sources
from moa_client.doctor.drafting import examine_companion
from moa_client.settings import ClientSettings
from moa_kernels import variant_name
from moa_shared.errors import MismatchError
from moa_shared.models import resolve
from moa_shared.programs.progress import SilentProgress

from tests.support.tiny_models import WORDS, save_tiny_model, save_tokenizer

TIME = re.compile(r"[\d.]+(?= ms)")


@pytest.mark.skipif(variant_name() == "numpy", reason="without kernels weights are not packed")
def test_a_companion_is_compared_with_the_server_s_model(tmp_path: Path) -> None:
    large, small = (save_tiny_model(tmp_path / name, template="{{ messages }}") for name in ("large", "small"))
    served = pb.DescribeResponse(identity=pb.Identity(target_id="large", target_fingerprint=b"l" * 32))
    settings = ClientSettings(companion=str(small), model=str(large), cache_dir=tmp_path)
    checks = [examine_companion(settings, served, None, SilentProgress())]
    save_tokenizer(small, template="{{ messages[0] }}")
    checks.append(examine_companion(settings, served, None, SilentProgress()))
    unknown = ClientSettings(companion=str(small), cache_dir=tmp_path)
    checks.append(examine_companion(unknown, served, None, SilentProgress()))
    assert [(check.state, TIME.sub("N", check.message), check.hint) for check in checks] == snapshot(
        [
            ("ok", "small: 145 kB of weights, 786 kB for a text of 1000 tokens; a level of a draft takes N ms", ""),
            (
                "ok",
                "small: 145 kB of weights, 786 kB for a text of 1000 tokens; a level of a draft takes N ms; its chat template is another one: it reads conversations in the server's",
                "",
            ),
            (
                "warn",
                "small: 145 kB of weights, 786 kB for a text of 1000 tokens; a level of a draft takes N ms",
                "Its vocabulary is compared when the first chat has fetched the server's tokenizer.",
            ),
        ]
    )
    save_tokenizer(small, [*WORDS[:5], "other", *WORDS[6:]])
    with pytest.raises(MismatchError):
        examine_companion(settings, served, None, SilentProgress())


def test_without_one_it_says_which_there_could_be(tmp_path: Path) -> None:
    served = pb.DescribeResponse(identity=pb.Identity(target_id="large"))
    settings = ClientSettings(cache_dir=tmp_path)
    files = resolve(str(save_tiny_model(tmp_path / "large")), tmp_path)
    shapes = {"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096}
    found = [Sources(served, replace(files, config=config), {}) for config in (files.config, shapes)]
    checks = [examine_companion(settings, served, sources, SilentProgress()) for sources in (None, *found)]
    offering = pb.DescribeResponse(companion=pb.Companion(name="small", bytes=250_000_000, fingerprint=b"s" * 32))
    auto = replace(settings, companion="auto")
    checks += [examine_companion(each, offering, None, SilentProgress()) for each in (settings, auto)]
    checks.append(examine_companion(auto, served, None, SilentProgress()))
    assert [f"{check.state}: {check.message}. {check.hint}".strip() for check in checks] == snapshot(
        [
            "skip: none; nothing of large is here to look for one by.",
            "ok: none, and none is known for large.",
            "ok: none; Qwen/Qwen3-0.6B would fit large. With --companion ID it writes here while no server answers (docs/drafters.md#a-companion).",
            "ok: the server offers small (250 MB). --companion auto fetches it, once: it writes here while no server answers.",
            "warn: the server offers small (250 MB), which is not here yet. The first chat fetches it.",
            "warn: the server offers none. Name one with --companion FILE.",
        ]
    )
