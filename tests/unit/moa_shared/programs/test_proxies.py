"""Which connections go by a proxy, as the variables of the environment say."""

from __future__ import annotations

from urllib.request import proxy_bypass

import pytest
from moa_shared.programs.proxies import Proxy, except_loopback, find_proxy

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
    assert proxy == Proxy("proxy.corp", 3128, "https_proxy", "ada:l@ck")
    assert "ada" not in f"{proxy} {proxy!r}"


def test_libraries_reach_this_machine_directly_and_all_that_was_excepted(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"http_proxy": "http://p:1", "NO_PROXY": "gpu.corp", "no_grpc_proxy": "gpu"}
    except_loopback(environment)
    for name in ("no_proxy", "NO_PROXY", "http_proxy"):
        monkeypatch.setenv(name, environment[name])
    excepted = {host: bool(proxy_bypass(host)) for host in ("localhost:80", "127.0.0.1:80", "gpu.corp", "corp")}
    assert excepted == {"localhost:80": True, "127.0.0.1:80": True, "gpu.corp": True, "corp": False}
    assert environment["no_grpc_proxy"].startswith("gpu,localhost,127.0.0.1,")
