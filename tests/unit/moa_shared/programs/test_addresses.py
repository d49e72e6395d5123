"""Addresses, the proxy to one, and invitations."""

import textwrap
from urllib.request import proxy_bypass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.errors import ConfigError
from moa_shared.programs import addresses

from tests.support.messages import says

RIGHT = ("a:1", "one.example:50051", "10.0.0.1:65535", "[::1]:80", "[2001:db8::1]:1", "my_host-2.local:7")
WRONG = (
    *("", "a", "a:", ":1", "a:0", "a:65536", "a:1x", "a:\u0661", "::1:80", "[a]:1", "[1.2.3.4]:5", "127.1:1"),
    *("0x7f.1:1", "2130706433:1", "http://a:1", "a b:1", "-a:1", "a..b:1", "a\n:1"),
    *(f"{'a' * 64}:1", f"{'a.' * 130}b:1"),
)


def test_what_is_host_port() -> None:
    assert [each for each in (*RIGHT, *WRONG) if addresses.is_host_port(each)] == [*RIGHT]


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "a.localhost", "127.8.9.1", "::1", "0.0.0.0", "::", "::ffff:127.0.0.1"]
)
def test_hosts_that_lead_to_whoever_is_told(host: str) -> None:
    assert addresses.leads_here(host)
    assert not addresses.leads_here("one.example")


def test_of_what_a_peer_names_the_first_few_are_taken() -> None:
    named = ["a:1", "no address", "a:1", *(f"b{number}:1" for number in range(20))]
    assert addresses.successors_among(named) == ("a:1", *(f"b{number}:1" for number in range(7)))


CORP = {"https_proxy": "http://ada:l%40ck@proxy.corp:3128", "no_proxy": ".corp, 10.0.0.0/8,2001:db8::/32"}


@pytest.mark.parametrize(("address", "environment", "proxy"), [
    ("gpu.example:1", {}, None),
    ("gpu.example:1", CORP, "proxy proxy.corp:3128, which https_proxy names"),  # its login is shown to nobody
    ("gpu.example:1", CORP | {"grpc_proxy": "http://[::2]"}, "proxy ::2:443, which grpc_proxy names"),
    ("gpu.example:1", CORP | {"no_proxy": "*"}, None),
    ("gpu.example:1", CORP | {"no_grpc_proxy": "example"}, None),
    ("gpu.corp:1", CORP | {"no_grpc_proxy": "example"}, "proxy proxy.corp:3128, which https_proxy names"),
    ("gpu.corp:1", {"http_proxy": "http://p:1", "NO_PROXY": "corp"}, None),
    ("gpu.example:1", {"https_proxy": "socks5://p:1"}, None),  # nor does gRPC go by it
    ("gpu.example:1", {"https_proxy": "http://p:port"}, None),
    *((f"{host}:1", CORP, None) for host in ("GPU.corp", "corp", "10.1.2.3", "[2001:db8::7]")),
    *((f"{host}:1", CORP, None) for host in ("localhost", "127.0.0.1", "127.3.2.1", "[::1]")),
    ("11.1.2.3:1", CORP, "proxy proxy.corp:3128, which https_proxy names"),
])  # fmt: skip
def test_the_proxy_on_the_way(address: str, environment: dict[str, str], proxy: str | None) -> None:
    assert addresses.find_proxy(address, environment) == proxy


def test_libraries_reach_this_machine_directly_and_all_that_was_excepted(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"http_proxy": "http://p:1", "NO_PROXY": "gpu.corp", "no_grpc_proxy": "gpu"}
    addresses.except_loopback(environment)
    for name in ("no_proxy", "NO_PROXY", "http_proxy"):
        monkeypatch.setenv(name, environment[name])
    excepted = {host: bool(proxy_bypass(host)) for host in ("localhost:80", "127.0.0.1:80", "gpu.corp", "corp")}
    assert excepted == {"localhost:80": True, "127.0.0.1:80": True, "gpu.corp": True, "corp": False}
    assert environment["no_grpc_proxy"].startswith("gpu,localhost,127.0.0.1,")


WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=255)
INVITATIONS = st.builds(addresses.Invitation, WORDS, WORDS, st.binary(max_size=600))
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
NOT_WHOLE = "The invitation is not whole: letters are missing or changed. Paste the whole line that"


@given(INVITATIONS, st.integers(20, 200))
def test_what_is_written_is_read_however_a_terminal_breaks_it(invitation: addresses.Invitation, width: int) -> None:
    line = invitation.line()
    assert (
        addresses.read_invitation("\n".join(textwrap.wrap(line, width)) + "\r\n")
        == addresses.read_invitation(line)
        == invitation
    )


@given(INVITATIONS, st.data())
def test_a_line_that_is_cut_or_changed_is_noticed(invitation: addresses.Invitation, data: st.DataObject) -> None:
    line = invitation.line()
    place = data.draw(st.integers(len(addresses.PREFIX), len(line) - 1))
    other = data.draw(st.sampled_from([letter for letter in [*ALPHABET, ""] if letter != line[place]]))
    for wrong in (line[:place], line[:place] + other + line[place + 1 :], line + other):
        if wrong != line:
            with pytest.raises(ConfigError):
                addresses.read_invitation(wrong)


@given(st.text(max_size=300))
def test_nothing_else_is_an_invitation(text: str) -> None:
    for wrong in (text, addresses.PREFIX + text):
        with pytest.raises(ConfigError):
            addresses.read_invitation(wrong)


@pytest.mark.parametrize(("text", "words"), [
    (" ", "An invitation begins with moa1_, this text does not. Paste the whole line that `moa-server setup` or"),
    ("moa2_abc", "This invitation is of another version of moa. Install the server's version."),
    (addresses.PREFIX + "x" * 9000, NOT_WHOLE),
    (addresses.PREFIX + "AAAA", NOT_WHOLE),
], ids=["nothing", "later", "long", "short"])  # fmt: skip
def test_what_is_wrong_with_an_invitation(text: str, words: str) -> None:
    with says(ConfigError, words):
        addresses.read_invitation(text)


def test_an_invitation_is_short_and_shows_no_key_by_accident() -> None:
    invitation = addresses.Invitation("[2001:db8::1]:50051", "moa_ab12_" + "s" * 43, bytes(420))
    assert len(invitation.line()) < 750
    assert "sss" not in repr(invitation)
    with says(ConfigError, "The address has 256 bytes, an invitation holds 255."):
        addresses.Invitation("h" * 256, "k").line()
