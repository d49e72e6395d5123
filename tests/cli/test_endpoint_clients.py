"""Programs that people use with OpenAI's API, pointed to the endpoint: curl, llm, and OpenAI's library for Node, LiteLLM.

The last two are installed by the test; it skips where that is not possible.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_client.web.runner import WebServer

from tests.support.scripted_answers import ScriptedSource, saying, serving
from tests.support.skipping import cannot_run

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
KEY = "0123456789abcdef"
CHAT = '{"model": "default", "messages": [{"role": "user", "content": "Hi"}]%s}'
STREAMED = ', "stream": true'


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with serving(ScriptedSource(saying("Good", " day", ".")), key=KEY) as server:
        yield server


async def run(*command: object, **environment: str) -> tuple[int, str, str]:
    """Runs a program next to the server: exit code, standard output, standard error."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"} | environment,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_curl(server: WebServer) -> None:
    url, key = f"{server.url}/v1/chat/completions", f"Authorization: Bearer {KEY}"
    code, out, err = await run("curl", "-sS", "-H", key, url, "-d", CHAT % "")
    assert code == 0, err
    assert json.loads(out)["choices"][0]["message"]["content"] == "Good day."
    code, out, _ = await run("curl", "-sS", "-N", "-H", key, url, "-d", CHAT % STREAMED)
    assert out.endswith("data: [DONE]\n\n")
    code, out, _ = await run("curl", "-sS", "-w", "%{http_code}", url, "-d", CHAT % "")
    assert out.endswith("401")


async def test_curl_learns_why_ten_megabytes_are_too_many(server: WebServer, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(b" " * 10_000_000)
    arguments = [
        "-sS",
        "-H",
        f"Authorization: Bearer {KEY}",
        f"{server.url}/v1/completions",
        "--data-binary",
        f"@{large}",
    ]
    code, out, err = await run("curl", *arguments)
    assert code == 0, err
    assert json.loads(out)["error"]["code"] == "request_too_large"


async def test_llm(server: WebServer, tmp_path: Path) -> None:
    models = f"- model_id: moa\n  model_name: default\n  api_base: {server.url}/v1\n  api_key_name: moa\n"
    (tmp_path / "extra-openai-models.yaml").write_text(models)
    (tmp_path / "keys.json").write_text(json.dumps({"moa": KEY}))
    environment = {"LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": ""}
    for options in (["--no-stream"], [], ["-o", "temperature", "0", "-s", "Be brief."], ["-o", "json_object", "1"]):
        code, out, err = await run(sys.executable, "-m", "llm", "-m", "moa", *options, "Hi", **environment)
        assert (code, out) == (0, "Good day.\n"), err
    refused = ["-o", "logit_bias", '{"99999": 5}']
    code, _, err = await run(sys.executable, "-m", "llm", "-m", "moa", *refused, "Hi", **environment)
    assert code == 1
    assert "logit_bias: expected tokens 0 to 999" in err, err


NODE = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.argv[2], apiKey: process.argv[3], maxRetries: 0 });
const asked = { model: "default", messages: [{ role: "user", content: "Hi" }] };
const whole = await client.chat.completions.create(asked);
console.log(whole.choices[0].message.content, whole.usage.total_tokens);
let text = "";
const stream = await client.chat.completions.create({ ...asked, stream: true, moa: { provisional: true } });
for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
console.log(text);
const helped = await client.chat.completions.stream(asked).finalChatCompletion();
console.log(helped.choices[0].message.content, helped.choices[0].finish_reason);
const refused = await client.chat.completions.create({ ...asked, n: 9 }).catch((error) => error);
console.log(refused.constructor.name, refused.status, refused.param, refused.code);
for await (const model of client.models.list()) console.log(model.id);
"""


async def test_openai_for_node(server: WebServer, tmp_path: Path) -> None:
    _install(["npm", "install", "--silent", "openai"], tmp_path)
    program = tmp_path / "ask.mjs"
    program.write_text(NODE)
    code, out, err = await run("node", program, f"{server.url}/v1", KEY)
    assert code == 0, err
    assert out == snapshot("""\
Good day. 4
Good day.
Good day. stop
BadRequestError 400 n invalid_value
scripted/model
""")


LITELLM = """
import sys
import litellm
litellm.suppress_debug_info = True
to = {"model": "openai/default", "api_base": sys.argv[1], "api_key": sys.argv[2], "max_retries": 0}
asked = to | {"messages": [{"role": "user", "content": "Hi"}]}
print(litellm.completion(**asked, temperature=0).choices[0].message.content)
print("".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**asked, stream=True)))
print(litellm.text_completion(**to, prompt="Once").choices[0].text)
try:
    litellm.completion(**asked, logprobs=True)
except litellm.BadRequestError as error:
    print(type(error).__name__, error.status_code)
"""


async def test_litellm(server: WebServer, tmp_path: Path) -> None:
    _install([sys.executable, "-m", "venv", tmp_path / "venv"], tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    _install([python, "-m", "pip", "install", "--quiet", "litellm"], tmp_path)
    code, out, err = await run(
        python, "-c", LITELLM, f"{server.url}/v1", KEY, PYTHONPATH="", LITELLM_LOCAL_MODEL_COST_MAP="True"
    )
    assert code == 0, err
    assert out == snapshot("""\
Good day.
Good day.
Good day.
BadRequestError 400
""")


def _install(command: list[object], folder: Path) -> None:
    """Installs a client from its registry."""
    if shutil.which(str(command[0])) is None:
        cannot_run(f"{command[0]} is not installed")
    done = subprocess.run([str(each) for each in command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        cannot_run(f"it needs a registry of packages: {done.stderr[-300:]}")
