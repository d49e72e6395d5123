"""What the doctor says of a companion."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.doctor.drafting import examine_companion
from moa_client.settings import ClientSettings
from moa_kernels import variant_name
from moa_shared.errors import MismatchError
from moa_shared.programs.progress import SilentProgress

from tests.support.tiny_models import WORDS, save_tiny_model, save_tokenizer

TIME = re.compile(r"[\d.]+(?= ms)")


@pytest.mark.skipif(variant_name() == "numpy", reason="without kernels weights are not packed")
def test_a_companion_is_compared_with_the_server_s_model(tmp_path: Path) -> None:
    large, small = (save_tiny_model(tmp_path / name, template="{{ messages }}") for name in ("large", "small"))
    served = pb.DescribeResponse(identity=pb.Identity(target_id="large", target_fingerprint=b"l" * 32))
    settings = ClientSettings(companion=str(small), model=str(large), cache_dir=tmp_path)
    checks = [examine_companion(settings, served, SilentProgress())]
    save_tokenizer(small, template="{{ messages[0] }}")
    checks.append(examine_companion(settings, served, SilentProgress()))
    unknown = ClientSettings(companion=str(small), cache_dir=tmp_path)
    checks.append(examine_companion(unknown, served, SilentProgress()))
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
        examine_companion(settings, served, SilentProgress())
