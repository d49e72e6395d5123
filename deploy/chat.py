"""`make chat`: a server on loopback, netsim before it if NETWORK names a profile, and a chat; ends what it started.

The environment has PROMPT, NETWORK and MODEL; where one is empty: a conversation, no emulated link, the default model.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

BIN = Path(sys.executable).parent
START_SECONDS = 900.0  # a large model is read and packed for the kernels within
END_SECONDS = 10.0


@contextmanager
def started(folder: Path, program: str, *arguments: str) -> Iterator[str]:
    """The address of a running program; if it ends before it has one, so does this, with its log."""
    ready, log = folder / f"{program}.ready", folder / f"{program}.log"
    command: list[str | Path] = [BIN / program, *arguments, "--ready-file", ready]
    with log.open("w") as file:  # in a session of its own: Ctrl-C is the chat's
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
    try:
        until = time.monotonic() + START_SECONDS
        while not ready.is_file() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        if not ready.is_file():
            sys.exit(f"{program} did not start:\n{log.read_text()}")
        yield ready.read_text().strip()
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def main() -> int:
    prompt, network, model = (os.environ.get(name, "") for name in ("PROMPT", "NETWORK", "MODEL"))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    served = [model] if model else []
    # Fetching the model shows its progress here, once; the server then starts from the cache.
    if status := subprocess.run([BIN / "moa-server", "fetch", *served], stdout=subprocess.DEVNULL).returncode:
        return status
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        serve = ("serve", *served, "--port", "0", "--log-format", "plain")
        address = stack.enter_context(started(folder, "moa-server", *serve))
        if network:
            proxy = ("proxy", "--profile", network, "--listen", "127.0.0.1:0", "--upstream", address)
            address = stack.enter_context(started(folder, "netsim", *proxy))
        signal.signal(signal.SIGINT, lambda *_: None)  # it stops the chat's answer
        asked = ["--", prompt] if prompt else []
        return subprocess.run([BIN / "moa-client", "chat", "--no-daemon", "--server", address, *asked]).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
