"""Programs pointed to the endpoint as docs/api.md says: curl, llm, OpenAI's library for Node, and instructor, which wants
older packages than the other libraries. What each prints is the same without drafts and cuts as with them.

The last two are installed by their tests; these skip where that is not possible.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.endpoints import KEY, Endpoints
from tests.support.programs import PATIENCE, printed
from tests.support.skipping import cannot_run

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.xdist_group("endpoints")]
QUESTION = "What is the weather in Paris?"
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "reason": {"type": "string", "minLength": 60, "maxLength": 100},  # so long that it can be cut in the middle
        },
        "required": ["city", "unit", "reason"],
        "additionalProperties": False,
    },
}
ASKED = {
    "model": "default",
    "messages": [{"role": "user", "content": QUESTION}],
    "temperature": 0,
    "max_tokens": 120,
}
WITHOUT_PROXY = {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}
FORCED = {"tools": [{"type": "function", "function": WEATHER}], "tool_choice": "required", "parallel_tool_calls": False}


def run(*command: object, **environment: str) -> str:
    return printed(*command, env=os.environ | WITHOUT_PROXY | environment, stdin=subprocess.DEVNULL)


def is_weather(arguments: str) -> bool:
    weather = json.loads(arguments)
    return set(weather) == {"city", "unit", "reason"} and len(weather["city"]) <= 20 and len(weather["reason"]) >= 60


def test_curl(endpoints: Endpoints) -> None:
    def ask(url: str) -> tuple[str, str]:
        key, body = f"Authorization: Bearer {KEY}", json.dumps({**ASKED, **FORCED, "stream": True})
        lines = run("curl", "-sS", "-N", "-H", key, f"{url}/v1/chat/completions", "-d", body).splitlines()
        events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        choices = [json.loads(event)["choices"][0] for event in events]
        functions = [call["function"] for choice in choices for call in choice["delta"].get("tool_calls", [])]
        assert choices[-1]["finish_reason"] == "tool_calls"
        return functions[0]["name"], "".join(function["arguments"] for function in functions)

    name, arguments = endpoints.same(ask)
    assert name == "get_weather"
    assert is_weather(arguments)


def test_llm(endpoints: Endpoints, tmp_path: Path) -> None:
    def ask(url: str, *arguments: str) -> str:
        model = {"model_id": "moa", "model_name": "default", "api_base": f"{url}/v1", "api_key_name": "moa"}
        models = [{**model, "supports_tools": True, "supports_schema": True}]
        (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(models))  # YAML reads JSON
        (tmp_path / "keys.json").write_text(json.dumps({"moa": KEY}))
        command = [sys.executable, "-m", "llm", "-m", "moa", "-o", "temperature", "0", "-o", "max_tokens", "120"]
        return run(*command, *arguments, LLM_USER_PATH=str(tmp_path), LLM_LOAD_PLUGINS="")

    schema = json.dumps(WEATHER["parameters"])
    assert is_weather(endpoints.same(lambda url: ask(url, "--schema", schema, "-T", "llm_time", QUESTION)))


NODE = """
import OpenAI from "openai";
const [asked, forced] = JSON.parse(process.argv[4]);
const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: process.argv[3], maxRetries: 0 });
const stream = client.chat.completions.stream({ ...asked, ...forced });
let pieces = "";
stream.on("tool_calls.function.arguments.delta", (event) => (pieces += event.arguments_delta));
const { finish_reason, message } = (await stream.finalChatCompletion()).choices[0];
const [call] = message.tool_calls;
const result = { role: "tool", tool_call_id: call.id, content: "sunny" };
const after = { ...asked, tools: forced.tools, messages: [...asked.messages, message, result] };
const answer = await client.chat.completions.create(after);
console.log(JSON.stringify({ finish_reason, pieces, ...call.function, answer: answer.choices[0].message.content }));
"""


def test_openai_for_node(endpoints: Endpoints, tmp_path: Path) -> None:
    install(["npm", "install", "--silent", "--no-audit", "--no-fund", f"openai@{OPENAI_FOR_NODE}"], tmp_path)
    program = tmp_path / "ask.mjs"
    program.write_text(NODE)
    told = json.loads(endpoints.same(lambda url: run("node", program, url, KEY, json.dumps([ASKED, FORCED]))))
    assert (told["finish_reason"], told["name"]) == ("tool_calls", "get_weather")
    assert told["pieces"] == told["arguments"]
    assert is_weather(told["arguments"])
    assert told["answer"]


OPENAI_FOR_NODE = "6.49.0"
# Asks each endpoint that it reads the URL of, and then runs the program of the documentation.
INSTRUCTOR = """
import json
import sys
from typing import Literal

import instructor
from openai import OpenAI
from pydantic import BaseModel, Field


class Weather(BaseModel):
    city: str = Field(max_length=20)
    unit: Literal["celsius", "fahrenheit"]
    reason: str = Field(min_length=60, max_length=100)


key, question = sys.argv[1:]
asked = {"model": "default", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 120}
for url in sys.stdin:
    openai = OpenAI(base_url=f"{url.strip()}/v1", api_key=key, max_retries=0)
    answers = [
        instructor.from_openai(openai, mode=mode).create(response_model=Weather, max_retries=0, **asked)
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA)
    ]
    answers += list(instructor.from_openai(openai).create_partial(response_model=Weather, max_retries=0, **asked))[-1:]
    print(json.dumps([answer.model_dump_json() for answer in answers]), flush=True)
"""


# What it requires and the environment has in a newer version; all else comes from there.
OLDER = ("instructor==1.17.0", "openai==3.3.0", "jiter==0.14.0", "rich==14.3.4", "docstring_parser==0.18.0")


def test_instructor(endpoints: Endpoints, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", tmp_path]
    install([*pip, *OLDER], tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", INSTRUCTOR, KEY, QUESTION],
        env=os.environ | WITHOUT_PROXY | {"PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        asked, printed = program.stdin, program.stdout
        assert asked is not None
        assert printed is not None

        def ask(url: str) -> list[str]:
            print(url, file=asked, flush=True)
            return list(json.loads(printed.readline()))

        answers = endpoints.same(ask)
        program.communicate(timeout=PATIENCE)
    assert program.returncode == 0
    assert len(answers) == 3
    assert all(is_weather(answer) for answer in answers)


def install(command: list[object], folder: Path) -> None:
    """Installs a client from its registry."""
    if shutil.which(str(command[0])) is None:
        cannot_run(f"{command[0]} is not installed")
    done = subprocess.run([str(each) for each in command], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        cannot_run(f"it needs a registry of packages: {done.stderr[-300:]}")
