"""`moa-client` as a user meets it: answers on a pipe, a chat on a terminal, refusals with their exit codes; where the server is not there,
goes, or comes back; and on a device that holds nothing.
"""

import json
import re
import signal
import subprocess
from contextlib import ExitStack
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
    serving,
    words,
)
from tests.support import model_places, tiny_gguf
from tests.support.programs import PATIENCE, free_port, started
from tests.support.terminal import Terminal, opened
from tests.support.tiny_gguf import GgufWriter

pytestmark = pytest.mark.xdist_group("client command line")


def test_config_needs_no_server_and_refuses_what_chat_refuses(run: Run) -> None:
    code, out, err = run("config", "--json", "--seed", 4)
    shown = json.loads(out)
    assert (code, err, set(shown)) == (0, "", set(settings_of(ClientSettings)))
    assert shown["seed"] == {"value": 4, "source": "command line", "name": "--seed"}
    assert run("config", "--drafting", "x")[::2] == run("chat", "--drafting", "x", "w10")[::2]


@pytest.mark.parametrize("more", [{}, {"drafter": "none"}, {"drafter": "lookup"}])
def test_the_answer_alone_is_on_standard_output(served: Served, run: Run, more: dict[str, object]) -> None:
    code, out, err = run("chat", *options(served, **more, temperature=0.8, seed=3, max_tokens=12), "w10 w11")
    tokens = alone(served, [4, 10, 11, 2, 5], temperature=0.8, seed=3, max_tokens=12)
    text = load_tokenizer(resolve(str(served.model))).decode(tokens, skip_special_tokens=True)
    assert (code, out) == (0, f"{text}\n")
    assert re.search(r"^\d+ tokens in [\d.]+ m?s \([\d.]+ tokens/s\), first after ", err, re.MULTILINE)


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
    [error] = re.findall("^Error: .*", done.stderr, re.MULTILINE)
    assert error.startswith("Error: Standard output cannot be written: No space left on device.")


@pytest.mark.parametrize(("arguments", "message"), [
    (["--server", "local host"], "--server is 'local host': expected HOST:PORT"),
    (["--temperature", "-1"], "--temperature is '-1': expected at least 0."),
    (["--system", "caf\udce9"], "--system is 'caf\\udce9': expected text in UTF-8."),
    (["--conversation", "\udce9"], "Invalid value for '--conversation': '\\udce9' is not text in UTF-8."),
    (["--xyzzy", "red"], "No such option '--xyzzy'."),
])  # fmt: skip
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


ASKED = [4, 10, 2, 5]  # "w10" in the tiny model's template


@pytest.fixture(autouse=True)
def _of_its_own(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CLIENT_DAEMON", "false")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def nowhere() -> str:
    """An address at which nothing listens."""
    return f"127.0.0.1:{free_port()}"


def events(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


def test_an_address_is_all_that_a_new_device_needs(served: Served, run: Run, tmp_path: Path) -> None:
    arguments = ["chat", "--server", served.address, "--max-tokens", 6, "w10"]
    code, out, err = run(*arguments)
    assert (code, out) == (0, words(alone(served, ASKED, max_tokens=6)) + "\n")
    assert "Fetching the drafter for tiny" in err
    assert "\x1b" not in out + err
    assert list((tmp_path / "cache").glob("fetched/*/drafter-*.safetensors"))
    assert "Fetching" not in run(*arguments)[2]
    code, out, err = run(*arguments, "--offline")  # what was fetched writes alone
    assert (code, len(out.split())) == (0, 6)
    assert err.startswith(
        "You are offline. Until a server is reachable, the small model on this device answers, much worse than tiny."
    )


def test_without_server_and_cache_it_says_what_is_missing(nowhere: str, run: Run) -> None:
    code, out, err = run("chat", "--server", nowhere, "w10")
    assert (code, out) == (69, "")
    assert (
        "There is no moa server at 127.0.0.1:PORT: the connection was refused. Check --server HOST:PORT or `moa" in err
    )
    code, out, err = run("chat", "--server", nowhere, "--offline", "w10")
    assert (code, out) == (66, "")
    assert err.startswith("Error: There is no drafter on this device to write with.")


def test_an_answer_that_no_server_has_verified_is_not_given_out_and_is_an_error(
    served: Served, nowhere: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ClientSettings.__init__.__kwdefaults__ or {}, "standalone_seconds", 0.0)
    willing = options(served, server=nowhere, max_tokens=6, standalone="always")
    code, out, err = run("chat", *willing, "w10")
    assert (code, len(out.split())) == (69, 6)
    assert "(The last 6 tokens were written by the small model on this device; no server has checked them.)" in err
    code, out, err = run("chat", *options(served, server=nowhere, max_tokens=6), "w10")
    assert (code, out) == (69, "")
    assert err.endswith(
        "\nError: No server has verified the answer to its end. Ask again when a server is available.\n"
    )


def test_events_for_programs(served: Served, nowhere: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ClientSettings.__init__.__kwdefaults__ or {}, "standalone_seconds", 0.0)
    answer = alone(served, ASKED, max_tokens=6)
    code, out, _ = run("chat", *options(served, max_tokens=6), "--json", "w10")
    first, *middle, last = events(out)
    assert (code, first["execution"]) == (0, {"level": "int8", "exact": True})
    assert first["drafter"]["reason"] == "as wished"  # type: ignore[index]
    ready = {"event": "ready", "target": "tiny", "server": served.address, "online": True}
    assert {name: first[name] for name in ready} == ready
    assert [token for event in middle if event["event"] == "committed" for token in event["tokens"]] == answer  # type: ignore[attr-defined]
    texts = [str(event.get("text", "")) for event in [*middle, last]]  # on a busy machine the link may be lost between
    assert "".join(texts) == words(answer)
    assert (last["event"], last["finish"], last["verified"]) == ("ended", "max_tokens", True)
    careful = options(served, server=nowhere, max_tokens=6)
    code, out, _ = run("chat", *careful, "--json", "w10")
    assert code == 69
    assert [event["event"] for event in events(out)] == ["ready", "asked", "held_back", "ended", "error"]
    assert events(out)[3]["finish"] == "unfinished"
    code, out, _ = run("chat", *careful, "--standalone", "always", "--json", "w10")
    told = events(out)
    assert [event["event"] for event in told] == ["ready", "asked", *["provisional"] * 6, "ended", "error"]
    assert (code, told[0]["online"], told[-2]["verified"], told[-1]["code"]) == (69, False, False, "unavailable")
    code, out, _ = run("chat", "--server", nowhere, "--json", "--cache-dir", "empty", "w10")
    assert (code, [event["event"] for event in events(out)]) == (69, ["error"])


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, Path, int]:
    """A model, a drafter and a port for a server that may be killed."""
    return make_model(tmp_path / "tiny", 1), make_drafter(tmp_path / "d.safetensors"), free_port()


def test_one_answer_through_a_killed_server_is_the_same(own: tuple[Path, Path, int], tmp_path: Path) -> None:
    model, drafter, port = own
    environment = ENVIRONMENT | {"XDG_STATE_HOME": str(tmp_path)}
    arguments = ["--max-tokens", "400", "w10"]
    stack = ExitStack()
    with serving(tmp_path, model, drafter, port) as running:
        expected = words(alone(running, ASKED, max_tokens=400))
        client = stack.enter_context(started([*CHAT, *options(running), *arguments], environment))
        begun = client.out.read(10)
        running.process.kill()
    with stack, serving(tmp_path, model, drafter, port):
        code, rest, err = client.end()
    assert begun + rest == expected + "\n"
    assert code == 0, err
    log = (tmp_path / "moa/log/client.log").read_text()
    assert f"stream 1 to 127.0.0.1:{port} lost: " in log
    assert re.search(rf"stream \d+ to 127.0.0.1:{port} opened in \d+ ms", log)
    assert log.index("link offline") < log.rindex("link back")


def test_a_chat_continues_offline_and_is_corrected_online(served: Served, terminal: Terminal) -> None:
    template = ChatTemplate(load_tokenizer(resolve(str(served.model))))
    terminal.enter("/offline", "Offline, as requested. Questions wait for the server")
    terminal.enter("w10", r"You are offline: the question waits")
    assert not terminal.display.dim
    terminal.enter("/undo", "Taken back: w10")
    terminal.enter("/standalone", "much worse than tiny")
    terminal.enter("w10", "cut after 6 tokens")
    assert len(re.findall(r"w\d+", terminal.display.dim)) == 6
    terminal.enter("w11", "cut after 6 tokens", r"link OFFLINE[^\n]*12 words to be checked")
    terminal.type("/online\r")
    first = [*ASKED, *alone(served, ASKED, max_tokens=6)]
    second = [*first, *template.next_turn("w11", first)]
    answers = rf"> w10\n{words(first[len(ASKED) :])}\n.*> w11\n{words(alone(served, second, max_tokens=6))}\n"
    terminal.wait_until(lambda: re.search(answers, terminal.text, re.DOTALL), "answers corrected in their places")
    terminal.wait_until(lambda: re.search(r"link (good|slow)(?!.*server)[^\n]*\s*$", terminal.text), "all verified")
    for question in ("w10", "w11"):
        assert re.search(rf'has corrected the answer to "{question}"; \d of 6 tokens', terminal.text)
    assert terminal.display.dim.split() == []
    terminal.type("/stats\r")
    told = r"standalone 6 tokens, \d kept\n"
    terminal.wait_until(lambda: re.search(told, terminal.text), told)
    terminal.type("/bye\r")
    assert terminal.end() == 0


TOKENS = 6


def test_what_it_has_written_is_checked_by_the_first_server(
    served: Served, run: Run, tmp_path: Path, cache: Path
) -> None:
    small = make_model(tmp_path / "small", 2)
    environment = ENVIRONMENT | {
        "MOA_CLIENT_HISTORY": "true", "XDG_DATA_HOME": str(tmp_path / "data"), "MOA_CACHE_DIR": str(cache),
    }  # fmt: skip
    arguments = ["--server", served.address, "--companion", str(small), "--max-tokens", str(TOKENS)]
    with opened([*CHAT, "--offline", *arguments], environment) as chat:
        chat.wait_for("Until a server is reachable, small on this device answers.")
        chat.enter("w10", "cut after 6 tokens")
        chat.enter("/online", "which continues what small on this device has", "The server has corrected the answer")
        chat.enter("w11", "cut after 6 tokens")
        chat.enter("/bye")
        assert chat.end() == 0
    kept = json.loads(run("history", "export", "last", "--format", "json")[1])
    assert kept["model"] == "tiny"
    first, second = kept["answers"]
    expected = alone(served, ASKED, max_tokens=TOKENS)
    assert first["tokens"] == expected
    assert second["tokens"] == alone(served, [*ASKED, *expected, 2, 4, 11, 2, 5], max_tokens=TOKENS)


def test_one_is_chosen_once_for_all_chats(served: Served, run: Run, tmp_path: Path) -> None:
    nowhere = ("--server", f"127.0.0.1:{free_port()}")
    alone_there = ("chat", "--offline", *nowhere, "--max-tokens", TOKENS, "w10")
    assert run("companion")[1].startswith("No companion: while no server answers, the drafter writes a few words.")
    assert run("companion", "set", tmp_path / "nowhere.gguf")[0] == 66
    code, out, _ = run("companion", "set", served.model)
    assert (code, out.split(",")[0]) == (0, "From now on: tiny")
    assert "which server's model it stands in for" in run("companion")[1]
    code, out, err = run(*alone_there)
    assert (code, out) == (0, words(alone(served, ASKED, max_tokens=TOKENS)) + "\n"), err
    assert "tiny on this device answers" not in run(*alone_there, "--companion", "none")[2]
    assert run("companion", "off")[:2] == (0, "From now on: no companion.\n")
    assert "tiny on this device answers" not in run(*alone_there)[2]


def test_a_companion_by_its_name_in_the_list_is_fetched_once_or_leaves_the_choice_as_it_was(
    run: Run,
    places: dict[str, Path],
    write_gguf: GgufWriter,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for heads in ("HEADS", "KV_HEADS"):
        monkeypatch.setattr(tiny_gguf, heads, 1)
    small = write_gguf("small.gguf", architecture="qwen3", rotated=32).read_bytes()
    hub = model_places.FakeHub(
        {"Qwen/Qwen3-0.6B-GGUF": {"Qwen3-0.6B-Q8_0.gguf": small}}, gated={"Qwen/Qwen3-0.6B-GGUF"}
    )
    assert run("companion", "off")[0] == 0
    with model_places.serving(hub):
        model_places.use_hub(monkeypatch, hub.url, places["hub"])
        code, out, err = run("companion", "set", "qwen3-0.6b")
        assert (code, out) == (66, "")
        assert "only to those who accepted its terms. Accept them on the model's page and set HF_TOKEN, or copy" in err
        assert run("companion")[1].startswith("No companion:")
        hub.gated.clear()
        assert run("companion", "set", "qwen3-0.6b")[1].startswith("From now on: Qwen/Qwen3-0.6B-GGUF:Q8_0, ")
    code, out, err = run("companion")  # without a network
    assert (code, out.startswith("Qwen/Qwen3-0.6B-GGUF:Q8_0, "), err) == (0, True, "")
