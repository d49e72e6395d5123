"""`moa-client chat --mcp` as a user meets it: a model that calls by a script, and a real MCP server."""

import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.client_program import CHAT, ENVIRONMENT, SIZES, Run, Served, make_drafter, options, serving
from tests.support import mcp_server
from tests.support.terminal import Terminal, opened
from tests.support.tiny_models import END, WORDS, TinyModel, save_tokenizer, tiny_model

pytestmark = pytest.mark.xdist_group("client command line")
ADD, HANG, RESULT_END, DONE = 30, 31, 32, 33
# What is asked is the last word before the answer, and that alone says what the model writes.
TEMPLATE = (
    "{% for m in messages %}w4 {{ m.content }} w2 {% endfor %}"
    "{% if add_generation_prompt %}w5 {{ messages[-1].content.split()[-1] }} {% endif %}"
)
SCRIPT = {10: ADD, 11: HANG, 12: DONE, RESULT_END: DONE}
TEXTS = {
    ADD: '<tool_call>{"name":"add","arguments":{"a":2,"b":3}}</tool_call>',
    HANG: '<tool_call>{"name":"hang","arguments":{}}</tool_call>',
    RESULT_END: "</tool_response>",
    DONE: "Done.",
}


SURE = 10.0


def follow(model: TinyModel, script: Mapping[int, int]) -> None:
    """Has the model write by a script. `script`: the token after each; all others are followed by the end."""
    tensors = model.tensors
    embedding, head = tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    rest = embedding.shape[1] - 1
    if len(script) > rest:
        raise ValueError(f"a script of at most {rest} tokens fits")
    for name in tensors:
        if "o_proj" in name or "down_proj" in name:  # layers add nothing
            tensors[name][:] = 0.0
        elif "norm" in name:
            tensors[name][:] = 1.0
    embedding[:], head[:] = 0.0, 0.0
    for feature, (token, after) in enumerate(script.items()):
        embedding[token, feature] = 1.0
        head[after, feature] = SURE
    embedding[[token not in script for token in range(len(embedding))], rest] = 1.0
    head[END, rest] = SURE


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose model calls `add` when asked w10, `hang` when asked w11, and is done with any result."""
    folder = tmp_path_factory.mktemp("caller")
    model = tiny_model(**SIZES, eos_token_id=END)
    follow(model, SCRIPT)
    model.save(folder / "tiny")
    save_tokenizer(folder / "tiny", [TEXTS.get(token, word) for token, word in enumerate(WORDS)], template=TEMPLATE)
    with serving(folder, folder / "tiny", make_drafter(folder / "d.safetensors")) as running:
        yield running


@pytest.fixture
def servers(tmp_path: Path) -> Path:
    path = tmp_path / "mcp.json"
    entry = {"command": sys.executable, "args": [mcp_server.__file__]}
    path.write_text(json.dumps({"mcpServers": {"test": entry, "gone": {"command": "/none"}}}))
    return path


@pytest.fixture
def begin(caller: Served, servers: Path, tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Begins a chat on a terminal, with a history."""
    environment = ENVIRONMENT | {"MOA_CLIENT_HISTORY": "true", "XDG_DATA_HOME": str(tmp_path)}
    with ExitStack() as stack:

        def begin(*arguments: str) -> Terminal:
            return stack.enter_context(opened([*CHAT, *options(caller, mcp=servers), *arguments], environment))

        yield begin


@pytest.mark.long
def test_each_call_is_asked_for_and_its_result_is_answered(begin: Callable[..., Terminal], servers: Path) -> None:
    chat = begin()
    chat.wait_for("Talking to tiny.*The MCP server gone does not start")
    chat.enter("w10", r"\* add \{\"a\": 2, \"b\": 3\} \(a tool of test\)\n  Run it\?")
    chat.type("n")
    chat.wait_for(r"  no\n! The user did not allow this call\.\nDone\.")
    chat.enter("w10", r"Run it\?")
    chat.type("xa")  # what is no answer is none
    chat.wait_for(r"  always\n= 5\nDone\.")
    chat.enter("w10")
    assert "Run it" not in chat.wait_for(r"= 5\nDone\.")
    chat.enter("w11", r"Run it\?")
    chat.type("y")
    chat.wait_for(r"  yes\n")
    chat.process.kill(signal.SIGINT)
    chat.wait_for(r"The call is left without an answer\. /continue takes it up\.\)\n\(stopped\)")
    chat.enter("w10", r"= 5\nDone\.")
    chat.enter("/undo", "Taken back: w10")
    notes = servers.with_name("my notes.txt")
    notes.write_text("w10\n")
    chat.enter(f"/file {notes}", r"my notes\.txt goes with the next question: 3 characters\.")
    chat.enter("w12", r"Done\.")
    chat.enter("/undo", r"Taken back: \[my notes\.txt\] w12")
    chat.enter("/bye")
    assert chat.end() == 0

    again = begin("--continue")
    again.wait_for(r"\* add .*\n= 5\nDone\.\n> w11\n.*\"hang\"")
    again.enter("/continue", r"\* hang \{\} \(a tool of test\)\n  Run it\?")
    again.type("n")
    again.wait_for("did not allow this call.\nDone")
    again.enter("w12", r"Done\.")


def test_a_single_answer_runs_what_is_allowed_and_says_what_is_not(caller: Served, servers: Path, run: Run) -> None:
    code, out, err = run("chat", *options(caller, mcp=servers), "w10")
    assert (code, out) == (0, f"{TEXTS[ADD]}\nDone.\n")
    assert "(add was not run, as nobody can be asked: --mcp-allow test/add lets it.)" in err
    code, out, err = run("chat", *options(caller, mcp=servers, mcp_allow="test/add"), "w10")
    assert (code, out) == (0, f"{TEXTS[ADD]}\nDone.\n")
    assert "\n= 5\n" in err
