"""API keys: what is kept of them and who is let in; and what callers may take in a minute."""

import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.access import keys, limits
from moa_server.access.limits import MINUTE, Bucket, Buckets, Caller, CallerLimits, Rates, Right, TokenMeter, anonymous
from moa_server.settings import SECTION, ServerSettings
from moa_shared.errors import AuthenticationError, ConfigError, NotFoundError, RateLimitError
from moa_shared.programs.atomic import write_private
from moa_shared.programs.config import load_settings
from structlog.testing import capture_logs

from tests.support.counted import Clock
from tests.support.messages import raises

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
PEER = "ipv4:10.0.0.1:4000"
SOUND = f"[keys.a]\nsha256 = '{'0' * 64}'\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def entry(name: str = "laptop", key: str = "", **fields: object) -> keys.KeyEntry:
    return keys.KeyEntry(name, keys.hash_of(key or keys.new_key()), **fields)  # type: ignore[arg-type]


def sent(key: str) -> list[tuple[str, str | bytes]]:
    return [("user-agent", "grpc"), ("authorization", f"Bearer {key}")]


def add(path: Path, name: str, **fields: object) -> str:
    key = keys.new_key()
    with keys.changing(path) as book:
        book[0] = book[0].with_entry(entry(name, key, **fields))
    return key


def test_keys_are_found_by_their_whole_hash_only_and_not_shown() -> None:
    key, stranger = keys.new_key(), keys.new_key()
    book = keys.KeyBook.of([entry("laptop", key), keys.KeyEntry("begins-alike", keys.hash_of(stranger)[:8] + "0" * 56)])
    found = book.entries["laptop"]
    assert [book.find(each) for each in (key, stranger, "")] == [found, None, None]
    assert not any(secret in repr(found) for secret in (key, found.sha256))


@given(
    st.dictionaries(
        st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,39}\Z"),
        st.tuples(
            st.frozensets(st.sampled_from(Right)),
            st.builds(CallerLimits, *[st.integers(0, 1 << 50)] * 4),
            st.none() | st.datetimes(datetime(2000, 1, 1), datetime(2999, 1, 1), timezones=st.just(UTC)),
        ),
        max_size=5,
    )
)
def test_a_file_says_what_was_written(tmp_path_factory: pytest.TempPathFactory, given: dict[str, tuple]) -> None:  # type: ignore[type-arg]
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    book = keys.KeyBook.of(
        entry(name, rights=rights, limits=limits, expires=expires and expires.replace(microsecond=0))
        for name, (rights, limits, expires) in given.items()
    )
    write_private(path, keys.text_of(book).encode("utf-8-sig"))  # some editors write a mark first
    assert keys.read_key_file(path) == book


@pytest.mark.parametrize(("text", "words"), [
    ("", "is empty"), ("[keys", "is not TOML"), ("keys = 1", r"must hold tables \[keys.NAME\]"),
    (f"[keys.a]\nsha256 = '{'0' * 63}'\n", "sha256 must be"), (SOUND + "right = []\n", "right is not known"),
    (SOUND + "rights = ['fly']\n", "'fly' is not a valid Right"),
    (SOUND + "sessions = true\n", "sessions must be a whole number"),
    (SOUND + "expires = 'soon'\n", "expires must be a date"),
    (SOUND.replace("a]", "'a b']"), "cannot be the name of a key"),
])  # fmt: skip
def test_a_file_that_cannot_be_used_says_why(path: Path, text: str, words: str) -> None:
    path.write_text(text)
    path.chmod(0o640)
    with raises(ConfigError, "Others may read the file of keys TMP/keys.toml. Protect it: chmod 600 TMP/keys.toml"):
        keys.read_key_file(path)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=words):
        keys.read_key_file(path)


def test_commands_at_once_all_take_effect_and_one_that_fails_changes_nothing(path: Path) -> None:
    threads = [threading.Thread(target=add, args=(path, f"key{number}")) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(keys.read_key_file(path).entries) == {f"key{number}" for number in range(8)}
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="already"):
        add(path, "key1")
    assert path.read_bytes() == before


def test_an_expiry_is_a_day_or_days() -> None:
    assert keys.read_expiry("30", NOW) == NOW + timedelta(days=30)
    assert keys.read_expiry("2026-11-23", NOW) == datetime(2026, 11, 23, 23, 59, 59, tzinfo=UTC)
    for text in ("0", "yesterday", "2026-11-22", "-3", "٣"):
        with pytest.raises(ConfigError, match=f"--expires is '{text}'"):
            keys.read_expiry(text, NOW)


def test_a_server_without_keys_knows_addresses_and_certificates() -> None:
    gate = keys.Gate()
    caller = gate.admit(sent("whatever"), PEER)
    assert (caller, gate.refusal(caller)) == (Caller("ipv4:10.0.0.1", PEER, is_proven=False), None)
    assert gate.admit([], PEER, "alice") == Caller("certificate alice", PEER, is_proven=True)


def test_a_key_says_who_calls_and_what_it_may(path: Path) -> None:
    limits, rights = CallerLimits(tokens_per_minute=600), frozenset({Right.GENERATE})
    key = add(path, "laptop", rights=rights, limits=limits)
    gate = keys.Gate(path)
    assert gate.admit(sent(key), PEER) == Caller(f"key {keys.hash_of(key)[:8]}", PEER, "laptop", rights, limits, True)
    for value in ("Basic abc", b"Bearer abc", "Bearer ", f"Bearer {key[:-1]}", key):
        with pytest.raises(AuthenticationError):
            gate.admit([("authorization", value)], PEER)
    with pytest.raises(AuthenticationError):
        gate.admit([], PEER, "alice")


def test_keys_of_the_environment_count_beside_those_of_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phone, laptop = keys.new_key(), add(path, "laptop")
    monkeypatch.setenv("MOA_KEYS", f"phone {phone},\n")
    gate = keys.Gate.of(path)
    assert [gate.admit(sent(key), PEER).key for key in (laptop, phone)] == ["laptop", "phone"]
    assert keys.Gate.of(None).wants_keys
    environment = {"MOA_KEYS": f"phone {phone}"}  # which is no setting
    assert load_settings(ServerSettings, SECTION, {}, environment=environment) == ServerSettings()
    monkeypatch.setenv("MOA_KEYS", " ")
    assert not keys.Gate.of(None).wants_keys


@pytest.mark.parametrize("text", ["phone", "phone short", "phone a b", "two words and more"])
def test_keys_of_the_environment_that_are_none_are_refused_without_being_shown(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        keys.keys_in(text, "MOA_KEYS")
    assert "short" not in str(caught.value)


def test_an_expired_key_is_refused_and_its_caller_sent_away(path: Path) -> None:
    now = [NOW]
    key = add(path, "laptop", expires=NOW + timedelta(hours=1))
    gate = keys.Gate(path, now=lambda: now[0])
    caller = gate.admit(sent(key), PEER)
    assert gate.refusal(caller) is None
    now[0] += timedelta(hours=2)
    assert "has expired" in str(gate.refusal(caller))
    with raises(AuthenticationError, "This API key has expired on 2026-11-23. Ask the operator for another one."):
        gate.admit(sent(key), PEER)


def test_changes_of_the_file_take_effect(path: Path) -> None:
    with pytest.raises(NotFoundError, match="There is no file of keys"):
        keys.Gate(path)
    laptop = add(path, "laptop")
    gate = keys.Gate(path)
    caller = gate.admit(sent(laptop), PEER)
    assert not gate.refresh()
    phone = add(path, "phone")
    assert gate.refresh()
    assert gate.admit(sent(phone), PEER).key == "phone"
    with keys.changing(path) as book:
        book[0] = book[0].without("laptop").with_entry(entry("laptop"))  # another key of that name
    assert gate.refresh()
    assert "was revoked" in str(gate.refusal(caller))
    with pytest.raises(AuthenticationError):
        gate.admit(sent(laptop), PEER)


@pytest.mark.parametrize("text", [None, "", "[keys.lap"], ids=["gone", "empty", "half-written"])
def test_a_file_that_becomes_unusable_changes_nothing(path: Path, text: str | None) -> None:
    key = add(path, "laptop")
    whole, gate = path.read_text(), keys.Gate(path)
    path.unlink()
    if text is not None:
        write_private(path, text.encode())
    with capture_logs() as lines:
        assert [gate.refresh(), gate.refresh()] == [False, False]
    assert len(lines) == 1  # not at each look
    assert gate.admit(sent(key), PEER).key == "laptop"
    write_private(path, whole.encode())
    os.utime(path, ns=(1, 1))
    assert gate.refresh()
    assert gate.admit(sent(key), PEER).key == "laptop"


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
        "ipv4:203.0.113.9:50123": "203.0.113.9", "ipv6:%5B2001:db8:1:2:3:4:5:6%5D:50123": "2001:db8:1:2::/64",
        "ipv6:[2001:db8:1:2::9]:50123": "2001:db8:1:2::/64", "ipv6:%5Bfe80::1%25eth0%5D:50123": "fe80::/64",
        "ipv6:%5B::ffff:203.0.113.9%5D:50123": "203.0.113.9",
        **{name: name for name in ("unix:/run/moa.sock", "ipv4:nonsense", "")},
    }  # fmt: skip
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
