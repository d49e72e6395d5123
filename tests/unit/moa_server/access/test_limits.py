"""What callers may take in a minute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.access.limits import (
    MINUTE,
    MOST_KEPT,
    Bucket,
    Buckets,
    Caller,
    CallerLimits,
    Rates,
    TokenMeter,
    address_of,
    anonymous,
)
from moa_shared.errors import RateLimitError

from tests.support.counted import Clock

KEY = Caller(owner="key alice", key="alice")


@pytest.fixture
def clock() -> Clock:
    return Clock()


def rates(clock: Clock, *, peer_calls: int = 0, requests: int = 0, tokens: int = 0) -> Rates:
    return Rates(peer_calls, requests, tokens, clock)


def test_without_limits_nothing_is_refused(clock: Clock) -> None:
    free = rates(clock)
    meter = TokenMeter(free, KEY)
    for _ in range(100_000):
        free.on_call(anonymous("ipv4:203.0.113.9:1"))
        free.on_request(KEY)
    meter.begin()
    meter.read(10**9)
    meter.write(10**9)
    assert meter.refusal() is None


def test_an_address_may_make_so_many_calls_over_all_its_connections(clock: Clock) -> None:
    limited = rates(clock, peer_calls=60)
    for port in range(60):
        limited.on_call(anonymous(f"ipv4:203.0.113.9:{port}"))
    with pytest.raises(RateLimitError, match="This address may make 60 calls a minute") as caught:
        limited.on_call(anonymous("ipv4:203.0.113.9:61"))
    assert caught.value.retry_after_ms == 1000
    limited.on_call(anonymous("ipv4:203.0.113.10:1"))
    clock.now = 1.0
    limited.on_call(anonymous("ipv4:203.0.113.9:62"))


def test_a_keys_own_limit_goes_before_the_servers(clock: Clock) -> None:
    limited = rates(clock, requests=1, tokens=1)
    own = Caller(owner="key bob", key="bob", limits=CallerLimits(tokens_per_minute=600, requests_per_minute=2))
    limited.on_request(own)
    limited.on_request(own)
    with pytest.raises(RateLimitError, match="The server lets this key make 2 requests a minute") as caught:
        limited.on_request(own)
    assert caught.value.retry_after_ms == 30_000
    assert limited.take_piece(own) == 100.0


def write_all(meter: TokenMeter) -> int:
    """How many tokens an answer writes until it must pause."""
    written = 0
    while meter.refusal() is None:
        meter.write(1)
        written += 1
    return written


def test_an_answer_pauses_when_nothing_is_left_and_goes_on_with_some_seconds_of_text(clock: Clock) -> None:
    meter = TokenMeter(rates(clock, tokens=600), KEY)
    meter.begin()
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
    limited = rates(clock, tokens=600)
    meter = TokenMeter(limited, KEY)
    meter.begin()
    meter.read(6000)
    assert write_all(meter) == 100  # it was let in for some seconds of text, whatever the prompt has cost
    meter.end()
    with pytest.raises(RateLimitError) as caught:
        TokenMeter(limited, KEY).begin()
    assert caught.value.retry_after_ms == 560_000


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:203.0.113.9:50123", "203.0.113.9"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:50123", "2001:db8:1:2::/64"),
        ("ipv6:[2001:db8:1:2::9]:50123", "2001:db8:1:2::/64"),
        ("ipv6:%5Bfe80::1%25eth0%5D:50123", "fe80::/64"),
        ("ipv6:%5B::ffff:203.0.113.9%5D:50123", "203.0.113.9"),
        ("unix:/run/moa.sock", "unix:/run/moa.sock"),
        ("ipv4:nonsense", "ipv4:nonsense"),
        ("", ""),
    ],
)
def test_addresses_have_no_ports_and_ipv6_counts_by_site(peer: str, address: str) -> None:
    assert address_of(peer) == address


def test_a_new_rate_changes_what_flows_in_and_not_what_is_owed() -> None:
    bucket = Bucket(60, now=0.0)
    bucket.take(90, 0.0)
    bucket.set_rate(600, 0.0)
    assert bucket.left(0.0) == -30.0
    assert bucket.left(3.0) == pytest.approx(0.0)
    bucket.set_rate(6, MINUTE)
    assert bucket.left(MINUTE) == 6.0


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 500.0))))
def test_no_more_is_taken_than_a_minutes_worth_and_what_flows_in(taken: list[tuple[float, float]]) -> None:
    """Where whoever takes waits until it is there."""
    bucket, now, total = Bucket(120, 0.0), 0.0, 0.0
    for pause, amount in taken:
        now += pause
        if bucket.left(now) >= amount:
            bucket.take(amount, now)
            total += amount
        assert total <= 120 + 120 * now / MINUTE + 1e-6


def test_those_that_owe_most_are_remembered() -> None:
    buckets = Buckets()
    owing = [f"owing {number}" for number in range(10)]
    for name in owing:
        buckets.of(name, 60, 0.0).take(1000, 0.0)
    for number in range(3 * MOST_KEPT):
        buckets.of(f"stranger {number}", 60, 0.0).take(1, 0.0)
        assert len(buckets) <= MOST_KEPT
    assert [buckets.of(name, 60, 0.0).left(0.0) for name in owing] == [-940.0] * 10


def test_full_ones_are_forgotten_first() -> None:
    buckets = Buckets()
    for number in range(MOST_KEPT):
        buckets.of(str(number), 60, 0.0)
    buckets.of("one more", 60, 0.0)
    assert len(buckets) == 1
