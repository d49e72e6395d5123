"""`moa-bench surfaces`: how soon a chat is there, with the daemon and without, and first tokens of chat and endpoint.

State: a server and a daemon as processes. Questions differ, so that nothing of one is cached for the next.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moa_shared.errors import UnavailableError
from moa_shared.programs.progress import make_progress

from moa_bench.cut.recording import Cast, Terminal
from moa_bench.harness.child import child_environment
from moa_bench.harness.cores import on_cores
from moa_bench.harness.servers import running_server
from moa_bench.report.experiment import Experiment
from moa_bench.report.report import facts_line, table
from moa_bench.report.spread import Spread

QUESTION = "Explain to a child why the sky is blue, part {}."
TOKENS = 8  # of an answer
PROMPT = b"0m>"
RUNS, QUICK_RUNS = 21, 2
LONGEST_S = 30.0
WITH, WITHOUT = "a chat is there, with the daemon", "without it"
CHAT, ENDPOINT, DIFFERENCE = "first token of a chat", "of a request to the endpoint", "difference of a pair"


def run_surfaces(*, quick: bool, json_file: Path | None, model: str, pin: bool) -> None:
    """Measure and report; what is compared takes turns.

    Raises:
        MoaError: a server or a client that fails.
    """
    runs = QUICK_RUNS if quick else RUNS
    experiment = Experiment("surfaces", quick=quick, json_file=json_file, pin=pin, runs=runs, target=model)
    taken_ms: dict[str, list[float]] = {name: [] for name in (WITH, WITHOUT, CHAT, ENDPOINT, DIFFERENCE)}
    with (
        on_cores(experiment.own_cores),
        running_server(model, cores=experiment.server_cores) as server,
        tempfile.TemporaryDirectory(prefix="moa", dir="/tmp") as folder,
    ):
        daemon = _Daemon(folder, server.address)
        try:
            with make_progress().task("Surfaces", runs) as task:
                for run in range(runs):
                    taken_ms[WITH].append(daemon.time_to_prompt_ms())
                    taken_ms[WITHOUT].append(daemon.time_to_prompt_ms("--no-daemon"))
                    taken_ms[CHAT].append(daemon.first_token_of_chat_ms(QUESTION.format(2 * run)))
                    taken_ms[ENDPOINT].append(daemon.first_token_of_request_ms(QUESTION.format(2 * run + 1)))
                    taken_ms[DIFFERENCE].append(taken_ms[ENDPOINT][-1] - taken_ms[CHAT][-1])
                    task.advance(1)
        finally:
            daemon.stop()
    experiment.result["taken_ms"] = taken_ms
    experiment.publish(render(experiment.result))


def render(result: Mapping[str, Any]) -> str:
    """One table: milliseconds of each."""
    rows = [[name, Spread.of(values).text(0)] for name, values in result["taken_ms"].items()]
    head = f"Medians and quartiles of {result['runs']} runs, in turn.\n"
    return "\n".join([facts_line(result), head, table(["", "ms"], rows)])


class _Daemon:
    """A daemon of its own, and what talks to it."""

    def __init__(self, folder: str, server: str) -> None:
        self._folder = folder
        self._environment = child_environment() | {
            "MOA_CLIENT_SERVER": server,
            "MOA_CLIENT_DAEMON_DIR": folder,
            "MOA_CLIENT_HISTORY_DIR": os.path.join(folder, "history"),
            "MOA_CLIENT_ENDPOINT_PORT": "0",
            "TERM": "xterm-256color",
        }
        self._run("daemon", "start")
        deadline = time.monotonic() + LONGEST_S
        while (status := json.loads(self._run("daemon", "status", "--json")))["phase"] != "ready":
            if time.monotonic() > deadline:
                raise UnavailableError(f"The daemon does not become ready: {status['phase']}.")
        self._port = int(status["url"].rpartition(":")[2])

    def time_to_prompt_ms(self, *options: str) -> float:
        """From the start of a chat's process to its prompt."""
        cast = Cast("")
        began = time.perf_counter()
        terminal = Terminal(["-P", "-m", "moa_client.cli", "chat", *options], self._environment, cast, LONGEST_S)
        terminal.read_until(PROMPT, LONGEST_S)
        taken_ms = 1e3 * (time.perf_counter() - began)
        terminal.type("/bye\r")
        terminal.read_until(None, 1.0)
        terminal.close()
        return taken_ms

    def first_token_of_chat_ms(self, question: str) -> float:
        """From a question on the socket to its first text."""
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(os.path.join(self._folder, "daemon.sock"))
            with peer.makefile("rwb") as lines:
                _say(lines, {"do": "open", "conversation": None, "single": True})
                json.loads(lines.readline())
                began = time.perf_counter()
                _say(lines, {"do": "ask", "question": question, "options": {"temperature": 0, "max_tokens": TOKENS}})
                taken_ms = 0.0
                for line in lines:
                    event = json.loads(line)
                    if event["event"] == "committed" and event["text"] and not taken_ms:
                        taken_ms = 1e3 * (time.perf_counter() - began)
                    if event["event"] in ("ended", "failed"):
                        break
        return taken_ms

    def first_token_of_request_ms(self, question: str) -> float:
        """From a request for a stream to its first text."""
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": TOKENS}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LONGEST_S)
        connection.connect()
        began = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", json.dumps(body | {"stream": True}))
        taken_ms = 0.0
        for line in connection.getresponse():
            if line.startswith(b"data: {") and not taken_ms:
                choices = json.loads(line[6:])["choices"]
                if choices and choices[0]["delta"].get("content"):
                    taken_ms = 1e3 * (time.perf_counter() - began)
        connection.close()
        return taken_ms

    def stop(self) -> None:
        self._run("daemon", "stop")

    def _run(self, *arguments: str) -> str:
        command = [sys.executable, "-P", "-m", "moa_client.cli", *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)
        return done.stdout


def _say(lines: Any, message: Mapping[str, Any]) -> None:
    lines.write(json.dumps(message).encode() + b"\n")
    lines.flush()
