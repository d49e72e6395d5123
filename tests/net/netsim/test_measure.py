"""Recording a link: against the far end, and against a server that knows nothing of it."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from netsim.errors import NetsimError
from netsim.measure import measure, serve
from netsim.run.control import send
from netsim.run.loop import Address
from netsim.traces import read_trace

from netsim import profiles
from tests.support.programs import environment, free_port, started


@pytest.fixture
def far_end() -> Iterator[Address]:
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve, args=(listener,))
    thread.start()
    yield Address(*listener.getsockname())
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_round_trips_and_rates(far_end: Address) -> None:
    seen = measure(far_end, idle_s=0.5, load_s=2.3)
    assert seen.far_end
    assert [t for t, _ in seen.round_trips_ms] == sorted(t for t, _ in seen.round_trips_ms) != []
    assert seen.down_mbps[0][1] > 0
    assert seen.up_mbps[0][1] > 0
    assert seen.loss is not None


def test_any_server_gives_round_trips() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:

        def accept() -> None:
            with suppress(OSError):  # the listening socket was shut down
                while True:
                    listener.accept()[0].close()

        thread = threading.Thread(target=accept)
        thread.start()
        seen = measure(Address(*listener.getsockname()), idle_s=0.3, load_s=1.0)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert not seen.far_end
    assert seen.round_trips_ms
    assert seen.down_mbps == []


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(*listener.getsockname())
    with pytest.raises(NetsimError, match="cannot be reached: Connection refused"):
        measure(address, 1.0, 0.0)


ENVIRONMENT = environment("netsim")
NETSIM = [sys.executable, "-m", "netsim.cli"]


def netsim(*words: str) -> str:
    done = subprocess.run([*NETSIM, *words], env=ENVIRONMENT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.xdist_group("netsim-real-time")
@pytest.mark.long
def test_record_replay_cut_report(tmp_path: Path) -> None:
    with started([*NETSIM, "serve", "--listen", ":0"], ENVIRONMENT) as far_end:
        address = far_end.out.readline().split()[-1]
        for target in ("ride.csv", "ride.yaml"):
            words = [*NETSIM, "record", "{link}", str(tmp_path / target), "--seconds", "2", "--load", "2.2"]
            said = netsim("run", "--profile", "wired", "--upstream", address, "--", *words)
            assert f"written to {tmp_path / target}" in said
        far_end.process.terminate()
        assert far_end.end()[0] == 0

    rows = read_trace(tmp_path / "ride.csv").rows
    assert rows[0].rtt_ms is not None
    assert rows[0].rtt_ms >= 9.0
    down = [row.down_mbps for row in rows if row.down_mbps is not None]
    assert down
    assert max(down) < 55.0
    assert profiles.load(str(tmp_path / "ride.yaml")).basis == "rtt"

    client = (
        "import os, time, urllib.request\n"
        "for i in range(20): urllib.request.urlopen('http://' + os.environ['NETSIM_LINK']).read(); time.sleep(0.05)"
    )
    control, out, web_port = tmp_path / "control", tmp_path / "run", free_port()
    served = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", str(web_port)]
    command = [
        *NETSIM, "replay", "--profile", "4g", "--loop", "--upstream", f":{web_port}", "--out", str(out),
        "--control", str(control), "--ready-file", str(tmp_path / "ready"), str(tmp_path / "ride.csv"), "--",
        sys.executable, "-c", client,
    ]  # fmt: skip
    with started(served, ENVIRONMENT) as web, ExitStack() as stack:
        assert "Serving HTTP" in web.out.readline()
        replay = stack.enter_context(started(command, ENVIRONMENT))
        while not (tmp_path / "ready").exists():
            assert replay.process.poll() is None
        send(control, {"do": "cut", "direction": "both", "seconds": 0.7})
        assert replay.end()[0] == 0

    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in events].count("request") == 20
    [cut] = [event for event in events if event["kind"] == "blackhole"]
    assert cut["until_s"] - cut["scheduled_s"] == pytest.approx(0.7)
    # A question put before the cut may have its answer afterwards; within it nothing is answered.
    answered = [event["t_s"] + event["latency_ms"] / 1e3 for event in events if event["kind"] == "request"]
    assert not [t for t in answered if cut["t_s"] + 0.02 < t < cut["until_s"]]
    netsim("report", str(out))
    assert (out / "report.png").read_bytes().startswith(b"\x89PNG")
