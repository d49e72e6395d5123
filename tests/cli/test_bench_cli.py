"""The command lines of moa-bench and moa-train: refusals, one quick run, a run that is killed and started again, and from conversations
to an evaluated drafter.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from click.testing import CliRunner
from moa_shared.drafter.checkpoint import load_ngrams
from moa_shared.drafter.companion import ANOTHER_MODEL, cache_file, confidence_beside
from moa_shared.drafting.estimates import PRIOR_EVIDENCE
from moa_shared.errors import DataError
from moa_shared.models import resolve
from moa_training.cli import cli
from moa_training.fit.run_state import only_run_in

from tests.cli.client_program import Run
from tests.support.programs import module, started
from tests.support.tiny_models import save_tiny_model, save_tokenizer
from tests.support.tiny_training import WORDS, save_tiny_target, write_conversations, write_fit_config

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("torch programs")]
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "COLUMNS": "100"}
Measure = Callable[..., tuple[dict[str, Any], CompletedProcess[str]]]


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    """Runs a suite with --quick; gives its result and what it printed."""

    def run(suite: str, *arguments: str) -> tuple[dict[str, Any], CompletedProcess[str]]:
        written = tmp_path / "result.json"
        words = [suite, "--quick", *arguments, "--json", str(written)]
        with started(module("moa_bench.cli", words), ENVIRONMENT) as program:
            code, out, errors = program.end()
        assert code == 0, errors
        return json.loads(written.read_text()), CompletedProcess(words, code, out, errors)

    return run


@pytest.mark.parametrize(("words", "code", "said"), [
    ("split --link 6g", 2, "There is no link '6g'. There are RTT 0, wired, 5G, 4G"),
    ("single --model ./no-such-folder --quick --json -", 66, "There is no model './no-such-folder'"),
    ("split --shape 135m --acceptance 1.5", 2, "--acceptance is ('1.5',): expected at most 1."),
    ("capacity --prompt-tokens 90 50", 2, "Prompts of 90 to 50 tokens do not exist."),
    ("engine --format=q8_0", 2, "--format is not a setting any more. Measure with that one."),
    ("soak --quick", 2, "soak is not a command any more: moa 0.2.0 was the last that had it. Measure with that one."),
    ("split --acceptance 0.5", 2, "--acceptance needs --shape, or another --model."),
    ("cut --level bf16 --questions any.jsonl", 2, "leave --questions or --level out."),
    ("capacity --shape 1b --model any", 2, "leave --model out."),
    ("split --shape 1b --drafter a=b", 2, "leave --drafter out with --shape."),
    ("capacity --shape 1b --way shipped", 2, "--way is plain or oracle."),
])  # fmt: skip
def test_what_cannot_be_measured_is_refused_in_one_sentence(program: Run, words: str, code: int, said: str) -> None:
    found, out, err = program("moa-bench", *words.split())
    assert (found, out, said in err.splitlines()[-1]) == (code, "", True), err


@pytest.mark.long
@pytest.mark.timeout(600)
def test_split_compares_all_ways_with_plain_streaming(measure: Measure) -> None:
    result, done = measure("split", "--link", "4G")
    (round_,) = result["rounds"]
    answers, ways = round_["answers"], ("synchronous rounds", "streamed")
    assert set(answers) == {
        "plain streaming", "co-located: the server drafts", "moa: everything on",
        *(f"MoA, N = {layers}: {way}" for layers in (3, 12) for way in ways),
    }  # fmt: skip
    assert all(answer["same"] and answer["tokens"] == 12 for method in answers.values() for answer in method)
    assert "Token by token, all answers are plain streaming's." in done.stdout


@pytest.mark.timeout(120)
def test_a_measurement_that_is_ended_leaves_no_server_behind(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from moa_bench import cli\n"
        "from moa_bench.harness.child import running\n"
        "@cli.cli.command()\n"
        "def wait():\n"
        "    with running('a_child_of_the_test', []) as child:\n"
        "        print(child.process.pid, flush=True)\n"
        "        signal.pause()\n"
        "sys.argv = ['moa-bench', 'wait']\n"
        "cli.main()\n"
    )
    (tmp_path / "a_child_of_the_test.py").write_text(
        "import signal, sys\nopen(sys.argv[-1], 'w').write('127.0.0.1:1')\nsignal.pause()\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    with started([sys.executable, "-c", script], environment) as bench:
        child = int(bench.out.readline())
        bench.process.terminate()
        assert bench.end()[0] == 143
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))


def test_from_conversations_to_an_evaluated_drafter(tmp_path: Path) -> None:
    target = save_tiny_target(tmp_path / "target")
    source = write_conversations(tmp_path / "in.jsonl", 40)
    source.write_text(source.read_text() + "not json\n")
    shard = tmp_path / "a.jsonl.zst"
    common = ["--target", str(target)]
    runner = CliRunner()
    result = runner.invoke(cli, ["prepare", str(source), "--output", str(shard), *common], catch_exceptions=False)
    assert "40 rows; 1 left out: 1 not JSON" in result.output
    own = tmp_path / "own.jsonl.zst"
    arguments = ["prepare", str(source), "--output", str(own), "--rewrite", "--answer-tokens", "8", "--slots", "8"]
    result = runner.invoke(cli, [*arguments, *common], catch_exceptions=False)
    assert own.stat().st_size > 0
    config = write_fit_config(tmp_path, target, own, tokens=400)
    with only_run_in(tmp_path / "out"):
        result = runner.invoke(cli, ["fit", str(config)])
    assert f"Another run is training into {tmp_path / 'out'}" in str(result.exception)
    result = runner.invoke(cli, ["fit", str(config)], catch_exceptions=False)
    checkpoint = tmp_path / "out" / "drafter.safetensors"
    assert str(checkpoint) in result.output
    table = tmp_path / "out" / "ngrams.safetensors"
    arguments = ["ngrams", str(own), "--output", str(table), "--least-count", "2", *common]
    result = runner.invoke(cli, arguments, catch_exceptions=False)
    assert f"{table}: {len(load_ngrams(table))} contexts" in result.output
    questions = tmp_path / "q.jsonl"
    questions.write_text("".join(json.dumps({"turns": [f"w{n} w2 w3"]}) + "\n" for n in range(4)))
    arguments = ["calibrate", str(checkpoint), str(questions), "--output", str(tmp_path / "c.json")]
    result = runner.invoke(cli, [*arguments, "--execution", "float32", "--answer-tokens", "8", *common])
    assert isinstance(result.exception, DataError)  # this target's answers are too short
    assert "Give more questions" in str(result.exception)
    questions.write_text(json.dumps({"category": "toy", "turns": ["w1 w2 w3"]}) + "\n")
    arguments = ["evaluate", str(checkpoint), str(questions), *common]
    arguments += ["--answer-tokens", "12", "--execution", "float32", "--json"]
    result = runner.invoke(cli, [*arguments, str(tmp_path / "r.json")], catch_exceptions=False)
    assert "chain of 5" in result.output
    assert "1 question;" in result.output
    assert json.loads((tmp_path / "r.json").read_text())["acceptance_length"] >= 1
    result = runner.invoke(cli, [*arguments, "-", "--unguarded"], catch_exceptions=False)
    assert json.loads(result.stdout)["questions"] == 1
    questions.write_text(json.dumps({"turns": ["w1 w2 w3"], "final_answer": "3"}) + "\n")
    result = runner.invoke(cli, [*arguments, "-", "--task-tokens", "12"], catch_exceptions=False)
    assert set(json.loads(result.stdout)["task"]) == {f"0.{tenth}" for tenth in range(10)}


def test_a_companion_is_calibrated_and_evaluated(tmp_path: Path) -> None:
    target = save_tiny_target(tmp_path / "target")
    small, other = (save_tiny_model(tmp_path / name, seed=9) for name in ("small", "other"))
    save_tokenizer(small, WORDS, end=4)
    save_tokenizer(other, [*WORDS[:9], "gravity", *WORDS[10:]], end=4)
    questions = tmp_path / "q.jsonl"
    questions.write_text("".join(json.dumps({"turns": [f"w{n} w2 w3"]}) + "\n" for n in range(4)))
    common = ["--target", str(target), "--answer-tokens", "20", "--execution", "float32"]
    runner = CliRunner()
    arguments = ["calibrate", f"companion:{small}", str(questions), *common]
    result = runner.invoke(cli, arguments, catch_exceptions=False)
    root = tmp_path / "cache"
    files, theirs = resolve(str(small), root), resolve(str(target), root)
    written = cache_file(files.fingerprint, theirs.fingerprint, root)
    assert str(written) in result.output
    assert "shown while the chance is" in result.output
    learned = confidence_beside(files, theirs, root)
    assert learned.evidence > PRIOR_EVIDENCE
    assert learned.shift < ANOTHER_MODEL  # a random model is right by chance
    arguments = ["evaluate", f"companion:{small}", str(questions), *common, "--standalone", "8", "--json", "-"]
    content = json.loads(runner.invoke(cli, arguments, catch_exceptions=False).stdout)
    assert content["acceptance_length"] >= 1
    assert content["cold"] is None  # memory is nothing to it
    refused = runner.invoke(cli, ["calibrate", f"companion:{other}", str(questions), *common])
    assert "token 9 is 'w4' there and 'gravity' here" in str(refused.exception)
    refused = runner.invoke(cli, ["calibrate", "default", str(questions), *common])
    assert "--output is missing" in str(refused.exception)


RAY = "--ray is not a setting any more. One process does the work of a machine: give each its own share"
REFUSED = [
    ("fit none.toml", 66, "There is no configuration none.toml."),
    ("prepare none.jsonl --output a.jsonl.zst --target default", 66, "There is no file none.jsonl."),
    ("prepare none.jsonl --output a.jsonl.zst --ray local", 2, RAY),
    ("compare a=a.json --share-picture a.png", 2, "--share-picture is not a setting any more. --picture draws it."),
]


@pytest.mark.parametrize(("words", "code", "message"), REFUSED)
def test_refusals_are_one_sentence_with_an_exit_code(program: Run, words: str, code: int, message: str) -> None:
    status, _, err = program("moa-train", *words.split())
    assert (status, err.splitlines()[-1].startswith(f"moa-train: {message}")) == (code, True)
