"""The command line of moa-bench: help, refusals, and one quick run of each suite."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from tests.cli.client_program import Run
from tests.support.programs import module, started

pytestmark = pytest.mark.xdist_group("torch programs")
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


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("split --link 6g", 2, "There is no link '6g'. There are RTT 0, wired, 5G, 4G"),
        ("single --model ./no-such-folder --quick --json -", 66, "There is no model './no-such-folder'"),
        ("split --shape 135m --acceptance 1.5", 2, "--acceptance is ('1.5',): expected at most 1."),
        ("capacity --prompt-tokens 90 --prompt-tokens 50", 2, "Prompts of 90 to 50 tokens do not exist."),
        ("engine --format=q8_0", 2, "--format is not a setting any more. Measure with that one."),
        ("soak --quick", 2, "Version 0.2.0 was the last with `moa-bench soak`. Measure with that one."),
        ("split --acceptance 0.5", 2, "--acceptance needs --shape, or another --model."),
        ("cut --level bf16 --questions any.jsonl", 2, "leave --questions or --level out."),
        ("capacity --shape 1b --model any", 2, "leave --model out."),
        ("split --shape 1b --drafter a=b", 2, "leave --drafter out with --shape."),
        ("capacity --shape 1b --way shipped", 2, "--way is plain or oracle."),
    ],
)
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


@pytest.mark.long
@pytest.mark.timeout(600)
def test_cut_answers_are_whole(measure: Measure) -> None:
    result, _ = measure("cut")
    assert sorted(incident["kind"] for incident in result["incidents"]) == ["cut", "cut", "kill", "reset"]
    assert all(incident["whole"] for incident in result["incidents"])
