"""Addresses, and the proxy to one."""

from urllib.request import proxy_bypass

import pytest
from moa_shared.programs.addresses import Proxy, except_loopback, find_proxy, is_host_port, leads_here, successors_among


@pytest.mark.parametrize(
    "text", ["a:1", "one.example:50051", "10.0.0.1:65535", "[::1]:80", "[2001:db8::1]:1", "my_host-2.local:7"]
)
def test_what_is_host_port(text: str) -> None:
    assert is_host_port(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "a:", ":1", "a:0", "a:65536", "a:1x", "a:\u0661", "::1:80", "[a]:1", "[1.2.3.4]:5", "127.1:1"),
        *("0x7f.1:1", "2130706433:1", "http://a:1", "a b:1", "-a:1", "a..b:1", "a\n:1"),
        *(f"{'a' * 64}:1", f"{'a.' * 130}b:1"),
    ],
)
def test_what_is_not_host_port(text: str) -> None:
    assert not is_host_port(text)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "a.localhost", "127.8.9.1", "::1", "0.0.0.0", "::"])
def test_hosts_that_lead_to_whoever_is_told(host: str) -> None:
    assert leads_here(host)
    assert not leads_here("one.example")
    assert leads_here("::ffff:127.0.0.1")


def test_of_what_a_peer_names_the_first_few_are_taken() -> None:
    named = ["a:1", "no address", "a:1", *(f"b{number}:1" for number in range(20))]
    assert successors_among(named) == ("a:1", *(f"b{number}:1" for number in range(7)))


CORP = {"https_proxy": "http://ada:l%40ck@proxy.corp:3128", "no_proxy": ".corp, 10.0.0.0/8,2001:db8::/32"}


@pytest.mark.parametrize(
    ("address", "environment", "proxy"),
    [
        ("gpu.example:1", {}, ""),
        ("gpu.example:1", CORP, "proxy proxy.corp:3128, which https_proxy names"),
        ("gpu.example:1", CORP | {"grpc_proxy": "http://[::2]"}, "proxy ::2:443, which grpc_proxy names"),
        ("gpu.example:1", CORP | {"no_proxy": "*"}, ""),
        ("gpu.example:1", CORP | {"no_grpc_proxy": "example"}, ""),
        ("gpu.corp:1", CORP | {"no_grpc_proxy": "example"}, "proxy proxy.corp:3128, which https_proxy names"),
        ("gpu.corp:1", {"http_proxy": "http://p:1", "NO_PROXY": "corp"}, ""),
        ("gpu.example:1", {"https_proxy": "socks5://p:1"}, ""),  # nor does gRPC go by it
        ("gpu.example:1", {"https_proxy": "http://p:port"}, ""),
        *((f"{host}:1", CORP, "") for host in ("GPU.corp", "corp", "10.1.2.3", "[2001:db8::7]")),
        *((f"{host}:1", CORP, "") for host in ("localhost", "127.0.0.1", "127.3.2.1", "[::1]")),
        ("11.1.2.3:1", CORP, "proxy proxy.corp:3128, which https_proxy names"),
    ],
)
def test_the_proxy_on_the_way(address: str, environment: dict[str, str], proxy: str) -> None:
    assert str(find_proxy(address, environment) or "") == proxy


def test_its_login_is_shown_to_nobody() -> None:
    proxy = find_proxy("gpu.example:1", CORP)
    assert proxy == Proxy("proxy.corp", 3128, "https_proxy")
    assert "ada" not in f"{proxy} {proxy!r}"


def test_libraries_reach_this_machine_directly_and_all_that_was_excepted(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"http_proxy": "http://p:1", "NO_PROXY": "gpu.corp", "no_grpc_proxy": "gpu"}
    except_loopback(environment)
    for name in ("no_proxy", "NO_PROXY", "http_proxy"):
        monkeypatch.setenv(name, environment[name])
    excepted = {host: bool(proxy_bypass(host)) for host in ("localhost:80", "127.0.0.1:80", "gpu.corp", "corp")}
    assert excepted == {"localhost:80": True, "127.0.0.1:80": True, "gpu.corp": True, "corp": False}
    assert environment["no_grpc_proxy"].startswith("gpu,localhost,127.0.0.1,")
