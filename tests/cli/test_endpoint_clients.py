"""curl and llm, pointed to an endpoint whose answers the tests write: keys, errors, calls that are followed.

tests/e2e has these and other clients with the default model.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from moa_client.web.server import WebServer

from tests.support.scripted_answers import ScriptedAnswer, ScriptedSource, saying, serving

pytestmark = pytest.mark.system
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


async def llm(server: WebServer, folder: Path, *options: str) -> tuple[int, str, str]:
    """Runs llm with a folder of its own."""
    models = f"- model_id: moa\n  model_name: default\n  api_base: {server.url}/v1\n  api_key_name: moa\n"
    (folder / "extra-openai-models.yaml").write_text(models + "  supports_tools: true\n")
    (folder / "keys.json").write_text(json.dumps({"moa": KEY}))
    command = [sys.executable, "-m", "llm", "-m", "moa", *options]
    return await run(*command, LLM_USER_PATH=str(folder), LLM_LOAD_PLUGINS="")


async def test_llm(server: WebServer, tmp_path: Path) -> None:
    for options in (["--no-stream"], ["-o", "temperature", "0", "-s", "Be brief.", "-o", "json_object", "1"]):
        code, out, err = await llm(server, tmp_path, *options, "Hi")
        assert (code, out) == (0, "Good day.\n"), err
    code, _, err = await llm(server, tmp_path, "-o", "logit_bias", '{"99999": 5}', "Hi")
    assert code == 1
    assert "logit_bias: expected tokens 0 to 999" in err, err


CALLS = """I multiply.
<tool_call>
{"name": "multiply", "arguments": {"a": 12, "b": 34}}
</tool_call>
<tool_call>
{"name": "multiply", "arguments": {"a": 5, "b": 6}}
</tool_call>"""
MULTIPLY = "def multiply(a: int, b: int) -> int: return a * b"


async def test_llm_follows_calls(tmp_path: Path) -> None:
    async def script(answer: ScriptedAnswer) -> None:
        await saying(*(CALLS if len(source.answers) == 1 else "Both are known."))(answer)

    source = ScriptedSource(script)
    source.context_tokens = 1000
    async with serving(source, key=KEY) as server:
        code, out, err = await llm(server, tmp_path, "--functions", MULTIPLY, "What are 12 times 34 and 5 times 6?")
    assert (code, out) == (0, "I multiply. Both are known.\n"), err
    results = [message["content"] for message in source.rendered if message["content"].startswith("<tool_response>")]
    assert results == ["<tool_response>\n408\n</tool_response>\n<tool_response>\n30\n</tool_response>"]
