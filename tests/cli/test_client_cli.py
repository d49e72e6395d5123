"""`moa-client` as a user meets it: help, answers on a pipe, a chat on a terminal, refusals with their exit codes."""

import json
import re
import signal
import subprocess
from pathlib import Path

import filelock
import pytest
from moa_client.settings import ClientSettings
from moa_client.tools.template import ChatTemplate
from moa_shared.models import load_tokenizer, resolve
from moa_shared.models.gguf_entry import entry_of, identify, read_parts
from moa_shared.programs.config import settings_of

from tests.cli.client_program import (
    CHAT,
    CONTEXT,
    ENVIRONMENT,
    Run,
    Served,
    alone,
    make_drafter,
    make_model,
    options,
    undisturbed,
    words,
)
from tests.support.programs import PATIENCE, started
from tests.support.terminal import Terminal
from tests.support.tiny_gguf import GgufWriter

pytestmark = [pytest.mark.xdist_group("client command line"), pytest.mark.usefixtures("cache")]
FIGURES = re.compile(
    r"\d+ tokens in [\d.]+ m?s \([\d.]+ tokens/s\), first after [\d.]+ m?s; (not drafted|\d+ % drafted[^;]*); [\d.]+ \w+ down"
    r"(; alone \d+ tokens, \d+ kept)?\n"
)


def test_config_needs_no_server_and_refuses_what_chat_refuses(run: Run) -> None:
    code, out, err = run("config", "--json", "--seed", 4)
    shown = json.loads(out)
    assert (code, err) == (0, "")
    assert set(shown) == set(settings_of(ClientSettings))
    assert shown["seed"] == {"value": 4, "source": "command line", "name": "--seed"}
    assert run("config", "--drafting", "x")[::2] == run("chat", "--drafting", "x", "w10")[::2]


@pytest.mark.parametrize("more", [{}, {"drafter": "none"}, {"drafter": "lookup"}])
def test_the_answer_alone_is_on_standard_output(served: Served, run: Run, more: dict[str, object]) -> None:
    code, out, err = run("chat", *options(served, **more, temperature=0.8, seed=3, max_tokens=12), "w10 w11")
    tokens = alone(served, [4, 10, 11, 2, 5], temperature=0.8, seed=3, max_tokens=12)
    assert (code, out) == (
        0,
        load_tokenizer(resolve(str(served.model))).decode(tokens, skip_special_tokens=True) + "\n",
    )
    assert FIGURES.search(err)


def test_a_prompt_can_be_piped_in_after_a_system_prompt(served: Served, run: Run) -> None:
    code, out, _ = run("chat", *options(served, system="w9", max_tokens=9), stdin="w30\n")
    assert (code, out) == (0, words(alone(served, [7, 9, 2, 4, 30, 2, 5], max_tokens=9)) + "\n")


def test_a_reader_that_has_enough_is_no_error(served: Served) -> None:
    with started([*CHAT, *options(served, max_tokens=2000), "w10"], ENVIRONMENT) as client:
        client.out.read(3)
        client.out.close()
        assert "Error" not in client.err.read()
        assert client.process.wait(PATIENCE) == 0


def test_an_answer_that_cannot_be_written_is_one_sentence(served: Served) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*CHAT, *options(served, max_tokens=20), "w10"],
            env=ENVIRONMENT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 74, done.stderr
    error = undisturbed(done.stderr)
    assert error.startswith("Error: Standard output cannot be written: No space left on device.")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--server", "local host"], "--server is 'local host': expected HOST:PORT"),
        (["--temperature", "-1"], "--temperature is '-1': expected at least 0."),
        (["--system", "caf\udce9"], "--system is 'caf\\udce9': expected text in UTF-8."),
        (["--conversation", "\udce9"], "Invalid value for '--conversation': '\\udce9' is not text in UTF-8."),
        (["--xyzzy", "red"], "No such option '--xyzzy'."),
    ],
)
def test_option_values_that_are_not_allowed(run: Run, arguments: list[str], message: str) -> None:
    code, out, err = run("chat", *arguments, "w10")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith(f"Error: {message}")


def test_prompts_models_and_drafters_that_do_not_fit(served: Served, run: Run, tmp_path: Path) -> None:
    def check(code: int, words: str, *arguments: object, stdin: str | bytes = "", **changes: object) -> None:
        found, out, err = run("chat", *options(served, **changes), *arguments, stdin=stdin)
        assert (found, out.strip(), words in err) == (code, "", True), err

    check(2, "The prompt is empty.", stdin=" \n")
    check(65, "The prompt is not text in UTF-8.", stdin=b"caf\xe9")
    check(65, f"The frame has 4099 tokens, the context holds {CONTEXT}.", "w10 " * CONTEXT)
    other = make_model(tmp_path / "other", 2)
    check(78, "The target model does not match: the server has tiny (DIGEST), the client has other", "w10", model=other)
    check(66, "There is no model './nowhere'", "w10", model="./nowhere")
    path = tmp_path / "d.safetensors"
    check(66, "There is no drafter checkpoint TMP/d.safetensors.", "w10", drafter=path)
    check(66, "No deep drafter comes with moa for tiny.", "w10", drafter="deep")
    make_drafter(path, seed=2)
    check(78, "The drafter does not match: the server has DIGEST, the client has DIGEST.", "w10", drafter=path)
    path.write_bytes(path.read_bytes()[:-100])
    check(65, "The drafter checkpoint TMP/d.safetensors is corrupt or truncated", "w10", drafter=path)


def test_a_chat(served: Served, terminal: Terminal) -> None:
    template = ChatTemplate(load_tokenizer(resolve(str(served.model))))

    first = template.first_turn("w10")
    answer = alone(served, first, max_tokens=6)
    terminal.enter("w10", words(answer), "cut after 6 tokens")
    committed = [*first, *answer]
    committed += template.next_turn("w11\nw12", committed)
    terminal.enter("w11\x1b\rw12", words(alone(served, committed, max_tokens=6)))  # Alt-Enter
    terminal.enter("/stats", "6 tokens in")
    terminal.enter("/stat", r"There is no command /stat\. Did you mean /stats\?")
    terminal.enter("/?", r"makes a new\s+line")
    terminal.process.send(b"w10 \xe9\r")  # as a terminal that is set to Latin-1 sends it
    terminal.wait_for("cut after 6 tokens")
    terminal.enter("//w10", "cut after 6 tokens")
    terminal.enter("/set max_tokens many")
    assert "--" not in terminal.wait_for(r"max_tokens is 'many': [^>]* max_tokens is still\s6\.")
    terminal.enter("/set max_tokens 4000", "max_tokens is 4000 now")
    terminal.enter("/reset", "A new conversation begins")
    terminal.enter("w10")
    terminal.wait_for(words(answer))  # the answer runs, and takes long
    terminal.process.kill(signal.SIGINT)
    terminal.wait_for(r"\(stopped\)")
    terminal.enter("/quit")
    assert terminal.end() == 0


def test_a_question_is_asked_again_and_taken_back(served: Served, terminal: Terminal) -> None:
    template = ChatTemplate(load_tokenizer(resolve(str(served.model))))
    first = template.first_turn("w10")
    answer = alone(served, first, max_tokens=6)
    terminal.enter("/retry", "Nothing was asked yet")
    terminal.enter("w10", words(answer))
    terminal.enter("/retry", "Asked again. At temperature 0 the answer is the same", words(answer))
    terminal.enter("/set temperature 0.8", "temperature is 0.8 now")
    terminal.enter("/retry")
    terminal.wait_for("Asked again, with another seed.")  # by which the answer may end early
    terminal.enter("/set seed 0", "seed is 0 now")
    terminal.enter("/retry", "Asked again, with seed 1.")
    terminal.wait_for(words(alone(served, first, max_tokens=6, temperature=0.8, seed=1)))
    terminal.enter("/undo", "Taken back: w10")
    terminal.enter("/set temperature default", r"temperature is 0.7 \(the default\) now")
    terminal.enter("/set temperature 0", "temperature is 0 now")
    terminal.enter("/edit", r"There is no /edit any more\. Arrow up")
    terminal.enter("/status", f"link \\w+[^\n]*\ntiny at {served.address}")
    terminal.enter("/system w9", "A new conversation begins, with this system prompt")
    terminal.enter("/system", "system is w9")
    terminal.at_prompt("/set thi\t")
    terminal.wait_for("/set thinking")
    terminal.type(" show\r")
    terminal.wait_for("thinking is show now")
    terminal.at_prompt("/")
    terminal.wait_for("/")  # those of before are there too
    terminal.type("\x7f\x1b[A\x1b[A\x1b[A")  # arrow up
    terminal.wait_for("system w9")
    terminal.type("\x03")
    terminal.enter("/q")
    assert terminal.end() == 0


def test_ctrl_c_in_a_single_answer_ends_the_program(served: Served) -> None:
    command = [*CHAT, *options(served, max_tokens=4000), "w10"]
    with started(command, ENVIRONMENT) as client:
        client.out.read(10)
        client.process.send_signal(signal.SIGINT)
        code, _, err = client.end()
    assert code == 130, err
    assert "Error: The answer was stopped." in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_as_it_was(terminal: Terminal, number: signal.Signals) -> None:
    terminal.enter("/set max_tokens 4000", "max_tokens is 4000 now")
    terminal.enter("w10", r"w\d+ w\d+")
    assert not terminal.echoes
    terminal.process.kill(number)
    assert terminal.end() == 128 + number
    assert terminal.echoes
    assert "Traceback" not in terminal.raw.decode()


def test_who_waits_for_another_program_says_so_and_can_be_stopped(write_gguf: GgufWriter, tmp_path: Path) -> None:
    path, cache = write_gguf(), tmp_path / "cache"
    lock = entry_of(identify(read_parts([path])), cache)
    lock.parent.mkdir(parents=True)
    command = [*CHAT, "--offline", "--model", str(path), "w10"]
    environment = ENVIRONMENT | {"MOA_CACHE_DIR": str(cache)}
    with filelock.FileLock(f"{lock}.lock"), started(command, environment) as client:
        line = client.err.readline()
        assert line.startswith(f"Waiting for another moa program, which is writing {lock}")
        client.process.send_signal(signal.SIGINT)
        code, _, err = client.end()
    assert (code, err.strip()) == (130, "")
