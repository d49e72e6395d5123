"""What callers may take in a minute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.access import limits
from moa_server.access.limits import MINUTE, Bucket, Buckets, Caller, CallerLimits, Rates, TokenMeter, anonymous
from moa_shared.errors import RateLimitError

from tests.support.counted import Clock

KEY = Caller(owner="key alice", key="alice")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_without_limits_nothing_is_counted() -> None:
    free = Rates(0, 0, 0, Clock())
    free.on_call(anonymous("ipv4:203.0.113.9:1"))
    free.on_request(KEY)
    free.check_tokens(KEY)
    assert (free.meter(KEY), free.buckets.made) == (None, 0)


def test_an_address_may_make_so_many_calls_over_all_its_connections(clock: Clock) -> None:
    limited = Rates(60, 0, 0, clock)
    for port in range(60):
        limited.on_call(anonymous(f"ipv4:203.0.113.9:{port}"))
    with pytest.raises(RateLimitError, match="The server lets this address make 60 calls a minute") as caught:
        limited.on_call(anonymous("ipv4:203.0.113.9:61"))
    assert caught.value.retry_after_ms == 1000
    limited.on_call(anonymous("ipv4:203.0.113.10:1"))
    clock.now = 1.0
    limited.on_call(anonymous("ipv4:203.0.113.9:62"))


def test_a_keys_own_limit_goes_before_the_servers(clock: Clock) -> None:
    limited = Rates(0, 1, 1, clock)
    own = Caller("key bob", key="bob", limits=CallerLimits(tokens_per_minute=600, requests_per_minute=2))
    for _ in range(2):
        limited.on_request(own)
    with pytest.raises(RateLimitError, match="The server lets this key make 2 requests a minute") as caught:
        limited.on_request(own)
    assert caught.value.retry_after_ms == 30_000
    meter = begun(limited, own)
    meter.read(10_000)
    assert write_all(meter) == 100


def begun(limited: Rates, caller: Caller = KEY) -> TokenMeter:
    meter = limited.meter(caller)
    assert meter is not None
    meter.begin()
    return meter


def write_all(meter: TokenMeter) -> int:
    """How many tokens an answer writes until it must pause."""
    written = 0
    while meter.refusal() is None:
        meter.write(1)
        written += 1
    return written


def test_an_answer_pauses_when_nothing_is_left_and_goes_on_with_some_seconds_of_text(clock: Clock) -> None:
    meter = begun(Rates(0, 0, 600, clock))
    meter.read(200)
    assert write_all(meter) == 400
    refusal = meter.refusal()
    assert refusal is not None
    assert refusal.message == "The server lets this key read and write 600 tokens a minute."
    assert refusal.retry_after_ms == 10_000
    clock.now = 10.0
    meter.begin()
    assert write_all(meter) == 100


def test_a_prompt_longer_than_a_minutes_worth_is_served_and_owed_for(clock: Clock) -> None:
    limited = Rates(0, 0, 600, clock)
    meter = begun(limited)
    meter.read(6000)
    assert write_all(meter) == 100  # it was let in for some seconds of text, whatever the prompt has cost
    meter.end()
    with pytest.raises(RateLimitError) as caught:
        begun(limited)
    assert caught.value.retry_after_ms == 560_000


def test_addresses_have_no_ports_and_ipv6_counts_by_site() -> None:
    addresses = {
        "ipv4:203.0.113.9:50123": "203.0.113.9",
        "ipv6:%5B2001:db8:1:2:3:4:5:6%5D:50123": "2001:db8:1:2::/64",
        "ipv6:[2001:db8:1:2::9]:50123": "2001:db8:1:2::/64",
        "ipv6:%5Bfe80::1%25eth0%5D:50123": "fe80::/64",
        "ipv6:%5B::ffff:203.0.113.9%5D:50123": "203.0.113.9",
        **{name: name for name in ("unix:/run/moa.sock", "ipv4:nonsense", "")},
    }
    assert {peer: limits.address_of(peer) for peer in addresses} == addresses


def test_a_new_rate_changes_what_flows_in_and_not_what_is_owed(clock: Clock) -> None:
    bucket = Bucket(clock, 60)
    bucket.take(90)
    bucket.set_rate(600)
    assert bucket.left == -30.0
    clock.now = 3.0
    assert bucket.left == pytest.approx(0.0)
    clock.now = MINUTE
    bucket.set_rate(6)
    assert bucket.left == 6.0


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 500.0))))
def test_no_more_is_taken_than_it_holds_and_what_flows_in(taken: list[tuple[float, float]]) -> None:
    """Where whoever takes waits until it is there."""
    clock, total = Clock(), 0.0
    bucket = Bucket(clock, 120)
    for pause, amount in taken:
        clock.now += pause
        if bucket.left >= amount:
            bucket.take(amount)
            total += amount
        assert total <= 120 + 120 * clock.now / MINUTE + 1e-6


def test_those_that_owe_most_are_remembered_and_full_ones_forgotten_first(clock: Clock) -> None:
    buckets = Buckets(clock)
    owing = [f"owing {number}" for number in range(10)]
    for name in owing:
        buckets.of(name, 60).take(1000)
    for number in range(3 * limits.MOST_KEPT):
        buckets.of(f"stranger {number}", 60).take(number % 2)
        assert len(buckets._kept) <= limits.MOST_KEPT
    assert [buckets.of(name, 60).left for name in owing] == [-940.0] * 10
    clock.now = 60 * MINUTE
    buckets.of("one more", 60)
