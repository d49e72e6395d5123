"""Profiles and what is said about a malformed one; settings of a running link; scenarios, which become schedules."""

import math
import re
from pathlib import Path

import pytest
import yaml
from netsim.cli import COMMANDS
from netsim.core.conditions import Bernoulli, Conditions, DelaySpec, Truncation
from netsim.core.link import Direction, Drop, Reason, Release
from netsim.errors import UsageError
from netsim.profiles import Scenario, change_of, load, names, parse, parse_settings
from netsim.traces import EventKind, parse_timed_event, parse_trace

SHIPPED = {"wired", "4g", "4g-rtt", "5g", "5g-rtt", "lte-train", "satellite", "bad-wifi", "perfect"}
BASE = "version: 1\nname: x\ndescription: y\nbasis: one_way\ndelay: {mean_ms: 10}\n"


def test_every_promised_profile_is_there_and_reads_back_as_it_is_printed() -> None:
    assert set(names()) == SHIPPED
    for name in SHIPPED:
        profile = load(name)
        assert (profile.name, parse(yaml.safe_dump(profile.document()), "printed.yaml")) == (name, profile)


@pytest.mark.parametrize(
    ("name", "mean_ms", "rate_mbps", "loss"),
    [("wired", 4.5, 50, 0.0), ("4g", 25.75, 20, 0.001), ("4g-rtt", 12.88, 20, 0.001), ("5g", 12.88, math.inf, 0.001)],
)
def test_the_papers_numbers(name: str, mean_ms: float, rate_mbps: float, loss: float) -> None:
    for direction in Direction:
        conditions = load(name).conditions(direction)
        assert conditions.delay.effective().mean_ms == pytest.approx(mean_ms, abs=0.02)
        assert (conditions.rate_bps, conditions.loss.mean) == (rate_mbps * 1e6, loss)
        assert conditions.queue_bytes == 256 * 1024
        assert conditions.delay.truncation is Truncation.REJECT
        assert conditions.delay.correlation_ms == 50.0


def test_toml_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'version = 1\nname = "mine"\ndescription = "d"\nbasis = "rtt"\n[delay]\nmean_ms = 30\n'
        "[[timeline]]\nat_s = 3\nkind = 'blackhole'\nduration_s = 2\ndirection = 'up'\n",
        encoding="utf-8-sig",  # some editors write a mark first
    )
    profile = load(str(path))
    assert profile.conditions(Direction.UP).delay.effective().mean_ms == 15.0
    [event] = Scenario(profile).events()
    assert (event.kind, event.duration_s, event.directions) == (EventKind.BLACKHOLE, 2.0, (Direction.UP,))


@pytest.mark.parametrize(("text", "message"), [
    ("[", "cannot be parsed"),
    (BASE.replace("basis: one_way\n", ""), "does not say its basis"),
    (BASE.replace("version: 1", "version: 2"), "version: Input should be 1"),
    (BASE + "speed: 3\n", "speed: Extra inputs are not permitted"),
    (BASE + "loss: {model: martian}\n", "loss: the model is 'bernoulli' (the default) or 'gilbert_elliott'"),
    (BASE + "timeline: [{at_s: 1, kind: blackhole}]\n", "a blackhole needs duration_s above 0"),
    (BASE + "timeline: [{at_s: 1, kind: change}]\n", "a change, and only a change, names a profile"),
    (BASE + "timeline: [{at_s: 1, kind: refuse, duration_s: 1, direction: up}]\n", "a refuse has no direction"),
])  # fmt: skip
def test_a_malformed_profile_says_where(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text, "mine.yaml")
    assert "mine.yaml" in caught.value.message
    assert message in caught.value.message


def test_settings_change_only_what_they_name() -> None:
    before = Conditions(1e6, DelaySpec(20.0, 5.0, scale=0.5), Bernoulli(0.1), 1000)
    after = change_of(parse_settings(("delay_ms=80", "loss=0.2", "queue_kib=8")))(before)
    assert (after.rate_bps, after.delay) == (1e6, DelaySpec(80.0, 2.5))
    assert (after.loss, after.queue_bytes) == (Bernoulli(0.2), 8192)
    for word, rate_bps in (("none", math.inf), ("2", 2e6)):  # a limit can be lifted
        assert change_of(parse_settings((f"rate_mbps={word}",)))(before).rate_bps == rate_bps


@pytest.mark.parametrize(
    "word",
    ["speed=3", "rate_mbps", "rate_mbps=fast", "loss=1.5", "delay_ms=-1", "queue_kib=1", "delay_ms=none", "loss=nan"],
)
def test_nonsense_is_refused(word: str) -> None:
    with pytest.raises(UsageError):
        parse_settings((word,))


def test_events_reach_the_schedules() -> None:
    events = tuple(map(parse_timed_event, ["1:blackhole:1:up", "3:hold:1", "5:change:wired:2"]))
    links = Scenario(load("perfect"), extra_events=events).models()
    assert links[Direction.UP].admit(100, 1.5) == Drop(Reason.OUTAGE)
    assert links[Direction.DOWN].admit(100, 1.5) == Release(1.5, 0.0, 0.0)
    held = links[Direction.DOWN].admit(100, 3.5)
    assert isinstance(held, Release)
    assert (held.t, links[Direction.UP].schedule.at(8.0).rate_bps) == (4.0, 50e6)
    assert 0.0 < links[Direction.UP].schedule.at(6.0).delay.effective().mean_ms < 4.5


@pytest.mark.parametrize("loop", [False, True])
def test_a_trace_drives_and_repeats_if_it_is_to(loop: bool) -> None:
    trace = parse_trace("t_s,down_mbps,event\n0,5,\n1,6,blackhole:0.5\n", "t")
    scenario = Scenario(load("perfect"), trace=trace, loop=loop)
    down = scenario.models()[Direction.DOWN].schedule
    assert [down.at(t).rate_bps for t in (0.5, 1.5, 100.5)] == [5e6, 6e6, 5e6 if loop else 6e6]
    assert [down.cut_at(t) for t in (1.2, 101.2, 101.7)] == [True, loop, False]
    assert scenario.events()[0].kind is EventKind.BLACKHOLE


DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "netsim.md").read_text()


def test_every_command_is_described_and_no_other_is_named() -> None:
    described = set(re.findall(r"`([a-z]+)`", "".join(re.findall(r"^\| (`netsim .*?) \|", PAGE, re.MULTILINE))))
    described |= set(re.findall(r"^\| `netsim ([a-z]+)`", PAGE, re.MULTILINE))
    assert described == set(COMMANDS)
    assert set(re.findall(r"(?:^|`)netsim ([a-z]+)", PAGE, re.MULTILINE)) <= set(COMMANDS)
