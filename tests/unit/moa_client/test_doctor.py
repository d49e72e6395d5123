"""What the doctor says of a companion."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa.v1 import moa_pb2 as pb
from moa_client.device.drafter_catalog import DrafterCandidate, ServerPace
from moa_client.doctor import examine_companion, judge_download, judge_drafts, judge_round_trip
from moa_client.settings import ClientSettings
from moa_kernels import variant_name
from moa_shared.errors import MismatchError
from moa_shared.programs.machine import Check, exit_code, si_bytes
from moa_shared.programs.progress import SilentProgress

from tests.support.tiny_models import WORDS, save_tiny_model, save_tokenizer

TIME = re.compile(r"[\d.]+(?= ms)")


@pytest.mark.skipif(variant_name() == "numpy", reason="without kernels weights are not packed")
def test_a_companion_is_compared_with_the_server_s_model(tmp_path: Path) -> None:
    large, small = (save_tiny_model(tmp_path / name, template="{{ messages }}") for name in ("large", "small"))
    served = pb.DescribeResponse(identity=pb.Identity(target_id="large", target_fingerprint=b"l" * 32))
    settings = ClientSettings(companion=str(small), model=str(large), cache_dir=tmp_path)
    checks = [examine_companion(settings, served, SilentProgress())]
    unknown = ClientSettings(companion=str(small), cache_dir=tmp_path)
    checks.append(examine_companion(unknown, served, SilentProgress()))
    assert [(check.state, TIME.sub("N", check.message), check.hint) for check in checks] == snapshot(
        [
            ("ok", "small: 145 kB of weights, 786 kB for a text of 1000 tokens; a level of a draft takes N ms", ""),
            (
                "warn",
                "small: 145 kB of weights, 786 kB for a text of 1000 tokens; a level of a draft takes N ms",
                "Its vocabulary is compared when the first chat has the server's.",
            ),
        ]
    )
    save_tokenizer(small, [*WORDS[:5], "other", *WORDS[6:]])
    with pytest.raises(MismatchError):
        examine_companion(settings, served, SilentProgress())


def test_without_one_it_says_what_the_server_offers(tmp_path: Path) -> None:
    offered = pb.Companion(name="small", bytes=250_000_000, fingerprint=b"s" * 32)
    none, offering = pb.DescribeResponse(), pb.DescribeResponse(companion=offered)
    settings = ClientSettings(cache_dir=tmp_path)
    auto = replace(settings, companion="auto")
    said = []
    for wanted, served in ((settings, none), (settings, offering), (auto, offering), (auto, none)):
        check = examine_companion(wanted, served, SilentProgress())
        said.append(f"{check.state}: {check.message}. {check.hint}".strip())
    assert said == [
        "ok: none (docs/drafters.md#a-companion).",
        "ok: the server offers small (250 MB). --companion auto fetches it, once: it writes here while no server answers.",
        "warn: the server offers small (250 MB), which is not here yet. The first chat fetches it.",
        "warn: the server offers none. Name one with --companion FILE.",
    ]


QUICK, DEEP = DrafterCandidate("online", 2.0, 2.4), DrafterCandidate("deep", 4.4, 3.7)
ADAPTS = "The memory sent adapts, and fewer drafts are made: the text is the same, and comes more slowly."
LITTLE = "drafts from here add little, and the server drafts while it has time"


@pytest.mark.parametrize(
    ("check", "message", "hint"),
    [
        (judge_round_trip(20.0, 0.25), "20.0 ms, the median of 7; 25 % of the server is taken", ""),
        (judge_round_trip(200.0, 0.25), "200.0 ms, ", "Text comes as fast, but begins later: use a nearer server."),
        (
            judge_round_trip(20.0, 0.95),
            "95 % of the server is taken",
            "It may refuse: ask later, or add another server.",
        ),
        (judge_download(400_000, 0.5, 10.0), "800 kB/s (400 kB in 0.5 s); text with drafts takes up to 55 kB/s", ""),
        (judge_download(400_000, 8.0, 10.0), "50 kB/s (400 kB in 8 s); text with drafts takes up to 55 kB/s", ADAPTS),
        (judge_download(4_000, 1.0, 0.0), "4 kB/s (4 kB in 1 s)", ""),
        (
            judge_drafts([QUICK], ServerPace(1.0, 1.0, 1.0)),
            "a level of a draft takes 2.0 ms (online); a plain step of the server 1.0 ms, 1000 tokens/s",
            "Drafts from here come too late: give the drafter more --threads.",
        ),
        (judge_drafts([QUICK], ServerPace(0.0, 0.0, 1.0)), "the server does not say how long a step takes", ""),
        (
            judge_drafts([QUICK, DEEP], ServerPace(50.0, 1.0, 20.0)),
            "4.4 ms (deep); a plain step of the server 50.0 ms, 20 tokens/s: about 1.7 times that with drafts from here (deep)",
            "",
        ),
        (judge_drafts([QUICK, DEEP], ServerPace(4.0, 1.0, 200.0)), LITTLE, ""),
    ],
)
def test_what_a_user_reads(check: Check, message: str, hint: str) -> None:
    assert (check.state, message in check.message, check.hint) == ("warn" if hint else "ok", True, hint)


def test_the_exit_code_is_that_of_the_first_failure() -> None:
    checks = [Check("a", "ok", ""), Check("b", "fail", "", exit_code=69), Check("c", "fail", "", exit_code=2)]
    assert exit_code(checks) == 69
    assert exit_code([Check("a", "warn", ""), Check("b", "skip", "")]) == 0


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1e3, "1 kB"), (12_345, "12.3 kB"), (2e6, "2 MB"), (3e10, "30 GB")]
)
def test_bytes_have_units(count: float, text: str) -> None:
    assert si_bytes(count) == text
