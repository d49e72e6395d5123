"""Profiles: those that come with netsim, both formats, and what is said about a malformed one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import yaml
from inline_snapshot import snapshot
from netsim.core.conditions import Bernoulli, GilbertElliott, Truncation
from netsim.core.link import Direction
from netsim.core.timeline import EventKind
from netsim.errors import ProfileError
from netsim.profile import profiles

from tests.support.messages import raises

SHIPPED = {"wired", "4g", "4g-rtt", "5g", "5g-rtt", "lte-train", "satellite", "bad-wifi", "perfect"}
BASE = "version: 1\nname: x\ndescription: y\nbasis: one_way\ndelay: {mean_ms: 10}\n"


def test_every_promised_profile_is_there_and_valid() -> None:
    assert set(profiles.names()) == SHIPPED
    for name in SHIPPED:
        assert profiles.load(name).name == name


@pytest.mark.parametrize(
    ("name", "mean_ms", "rate_mbps", "loss"),
    [("wired", 4.5, 50, 0.0), ("4g", 25.75, 20, 0.001), ("4g-rtt", 12.88, 20, 0.001), ("5g", 12.88, math.inf, 0.001)],
)
def test_the_papers_numbers(name: str, mean_ms: float, rate_mbps: float, loss: float) -> None:
    for direction in Direction:
        conditions = profiles.load(name).conditions(direction)
        assert conditions.delay.effective().mean_ms == pytest.approx(mean_ms, abs=0.02)
        assert conditions.rate_bps == rate_mbps * 1e6
        assert conditions.loss.mean == loss
        assert conditions.queue_bytes == 256 * 1024
        assert conditions.delay.truncation is Truncation.REJECT
        assert conditions.delay.correlation_ms in (50.0, 50)


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_a_printed_profile_reads_back(name: str) -> None:
    profile = profiles.load(name)
    assert profiles.parse(yaml.safe_dump(profile.document()), "printed.yaml") == profile


def test_directions_may_differ() -> None:
    text = (
        BASE
        + "rate_mbps: 10\nup: {rate_mbps: 2, queue_kib: 64}\n"
        + "down: {loss: {model: gilbert_elliott, enter_bad: 0.1, leave_bad: 0.5}}\n"
    )
    profile = profiles.parse(text, "x.yaml")
    up, down = profile.conditions(Direction.UP), profile.conditions(Direction.DOWN)
    assert (up.rate_bps, up.queue_bytes) == (2e6, 64 * 1024)
    assert (down.rate_bps, down.queue_bytes) == (1e7, 256 * 1024)
    assert down.loss == GilbertElliott(0.1, 0.5)


def test_a_loss_without_its_model_is_independent() -> None:
    profile = profiles.parse(BASE + "loss: {probability: 0.1}\nup: {loss: {probability: 0.2}}\n", "mine.yaml")
    assert [profile.conditions(each).loss for each in (Direction.DOWN, Direction.UP)] == [
        Bernoulli(0.1),
        Bernoulli(0.2),
    ]
    assert profiles.parse(yaml.safe_dump(profile.document()), "mine.yaml") == profile


def test_toml_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'version = 1\nname = "mine"\ndescription = "d"\nbasis = "rtt"\n[delay]\nmean_ms = 30\n'
        "[[timeline]]\nat_s = 3\nkind = 'blackhole'\nduration_s = 2\ndirection = 'up'\n",
        encoding="utf-8-sig",  # some editors write a mark first
    )
    profile = profiles.load(str(path))
    assert profile.conditions(Direction.UP).delay.effective().mean_ms == 15.0
    [event] = profile.events()
    assert (event.kind, event.duration_s, event.directions) == (EventKind.BLACKHOLE, 2.0, (Direction.UP,))


@pytest.mark.parametrize(
    ("asked", "offered"), [("4gg", "4g"), ("wird", "wired"), ("satelite", "satellite"), ("5G", "5g")]
)
def test_an_unknown_profile_offers_the_nearest(asked: str, offered: str) -> None:
    with pytest.raises(ProfileError, match=f"no profile '{asked}'") as caught:
        profiles.load(asked)
    assert caught.value.hint is not None
    assert offered in caught.value.hint.split("?")[0]


def test_a_name_like_no_other_lists_all() -> None:
    with pytest.raises(ProfileError) as caught:
        profiles.load("zzzzzz")
    assert all(name in str(caught.value.hint) for name in SHIPPED)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "cannot be parsed"),
        ("just words", "holds no fields"),
        (BASE.replace("basis: one_way\n", ""), "does not say its basis"),
        (BASE.replace("one_way", "sideways"), "basis: Input should be 'one_way' or 'rtt'"),
        (BASE.replace("version: 1", "version: 2"), "version: Input should be 1"),
        (BASE + "speed: 3\n", "speed: Extra inputs are not permitted"),
        (BASE.replace("10", "-1"), "delay.mean_ms: Input should be greater than or equal to 0"),
        (BASE + "rate_mbps: 0\n", "rate_mbps: Input should be greater than 0"),
        (BASE + "loss: {model: bernoulli, probability: 2}\n", "less than or equal to 1"),
        (BASE + "loss: {model: martian}\n", "loss: the model is 'bernoulli' (the default) or 'gilbert_elliott'"),
        (BASE + "timeline: [{at_s: 1, kind: blackhole}]\n", "a blackhole needs duration_s above 0"),
        (BASE + "timeline: [{at_s: 1, kind: change}]\n", "a change, and only a change, names a profile"),
        (BASE + "timeline: [{at_s: 1, kind: reset, duration_s: 1}]\n", "a reset has no duration_s"),
        (BASE + "timeline: [{at_s: 1, kind: refuse, duration_s: 1, direction: up}]\n", "a refuse has no direction"),
        (BASE + "timeline: [{at_s: 1, kind: reset, ramp_s: 1}]\n", "only a change has a ramp"),
    ],
)
def test_a_malformed_profile_says_where(text: str, message: str) -> None:
    with pytest.raises(ProfileError) as caught:
        profiles.parse(text, "mine.yaml")
    assert "mine.yaml" in caught.value.message
    assert message in caught.value.message


def test_a_missing_file_says_so() -> None:
    with raises(ProfileError, snapshot("Profile ./none.yaml cannot be read: No such file or directory.")):
        profiles.load("./none.yaml")
