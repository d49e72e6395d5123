from __future__ import annotations

import socket

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import ConfigError, MoaError, UnavailableError
from moa_shared.programs.progress import SilentProgress
from moa_training.cluster.on_ray import open_runner
from moa_training.cluster.run import InProcess

from tests.support.messages import raises
from tests.support.programs import free_port


def test_without_an_address_this_process_works() -> None:
    with open_runner(None, None, 1, SilentProgress()) as runner:
        assert isinstance(runner, InProcess)


@pytest.mark.parametrize(
    ("address", "kind", "message"),
    [
        (
            "127.0.0.1:PORT",
            UnavailableError,
            snapshot(
                "There is no Ray cluster at 127.0.0.1:PORT ([Errno 111] Connection refused). Start one with ray start --head, or give --ray local."
            ),
        ),
        (
            "somewhere",
            ConfigError,
            snapshot(
                "--ray is 'somewhere': expected HOST:PORT of a Ray cluster, or local. See --help for the values allowed."
            ),
        ),
        (
            "127.0.0.1:x",
            ConfigError,
            snapshot(
                "--ray is '127.0.0.1:x': expected HOST:PORT of a Ray cluster, or local. See --help for the values allowed."
            ),
        ),
    ],
    ids=["nobody listens", "no port", "a port of letters"],
)
def test_an_address_without_a_cluster_is_refused_at_once(address: str, kind: type[MoaError], message: str) -> None:
    with raises(kind, message), open_runner(address.replace("PORT", str(free_port())), None, 1, SilentProgress()):
        pytest.fail("no cluster is there")


@pytest.mark.parametrize("error", [ConnectionError("Failed to connect"), RuntimeError("Version mismatch: ...\nmore")])
def test_a_cluster_that_does_not_take_us_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """As one that wants a token, or has another version of Ray."""
    import ray

    def refuse(**_: object) -> None:
        raise error

    monkeypatch.setattr(ray, "init", refuse)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(UnavailableError) as caught,
        open_runner(f"127.0.0.1:{listener.getsockname()[1]}", None, 1, SilentProgress()),
    ):
        pytest.fail("it has not joined")
    assert str(error).partition("\n")[0].rstrip(".") in caught.value.message
    assert "RAY_AUTH_TOKEN_PATH" in caught.value.hint
    assert not ray.is_initialized()
