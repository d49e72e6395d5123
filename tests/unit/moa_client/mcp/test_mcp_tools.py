"""The tools of real MCP servers: programs over stdio, and one over HTTP."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from inline_snapshot import snapshot
from mcp.types import Tool
from moa_client.mcp import mcp_tools
from moa_client.mcp.mcp_tools import MOST_PROBLEMS, McpTools, offered_tools
from moa_client.mcp.server_file import MOST_BYTES, ToolServerEntry, parse_servers, read_server_file
from moa_client.tools.tool import MOST_TOOLS, AnsweredCall
from moa_shared.errors import ConfigError

from tests.support import mcp_server
from tests.support.tool_calls import call

PROGRAM = ToolServerEntry(name="test", command=sys.executable, args=[mcp_server.__file__])


@asynccontextmanager
async def running(
    *entries: ToolServerEntry, call_seconds: float = 60.0, start_seconds: float = 60.0
) -> AsyncIterator[McpTools]:
    tools = McpTools(entries, call_seconds, start_seconds)
    try:
        await tools.start()
        yield tools
    finally:
        await tools.close()


def said(answered: AnsweredCall) -> tuple[str, bool]:
    return answered.content, answered.is_error


async def test_tools_of_a_program_are_listed_and_called_and_it_is_started_again_where_it_has_ended() -> None:
    async with running(PROGRAM) as tools:
        assert [tool.name for tool in tools.tools] == ["add", "fail", "end", "hang", "long", "picture"]
        assert (tools.remarks, tools.server_of("add"), tools.server_of("sub")) == ([], "test", "")
        assert said(await tools.run(call("add", a=2, b=3))) == ("5", False)
        assert said(await tools.run(call("picture"))) == ("See:\n[image content, which models here cannot read]", False)
        assert len((await tools.run(call("long", characters=1 << 20))).content) == 1 << 20
        assert said(await tools.run(call("fail"))) == ("Error executing tool fail", True)
        assert "Input should be a valid integer" in (await tools.run(call("add", a="two", b=1))).content
        assert said(await tools.run(call("sub"))) == ("There is no tool sub now.", True)
        assert said(await tools.run(call("end"))) == ("The MCP server test has ended during the call.", True)
        assert said(await tools.run(call("add", a=4, b=3))) == ("7", False)


async def test_a_call_that_hangs_is_ended_by_its_time_or_by_the_user_and_the_next_is_answered() -> None:
    async with running(PROGRAM, call_seconds=0.2) as tools:
        assert said(await tools.run(call("hang"))) == ("The tool has not answered within 0.2 s.", True)
        hanging = asyncio.create_task(tools.run(call("hang")))
        await asyncio.sleep(0)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
    async with running(PROGRAM) as tools:
        assert said(await tools.run(call("add", a=1, b=1))) == ("2", False)


async def test_a_server_that_does_not_start_costs_its_own_tools_alone(tmp_path: Path) -> None:
    missing = ToolServerEntry(name="missing", command=str(tmp_path / "none"))
    ends = PROGRAM.model_copy(update={"name": "ends", "args": [*PROGRAM.args, "end"]})
    away = ToolServerEntry(name="away", url="http://127.0.0.1:9/mcp")
    async with running(missing, ends, away, PROGRAM) as tools:
        assert len(tools.tools) == 6
        assert [each.replace(str(tmp_path), "FOLDER") for each in tools.remarks] == snapshot(
            [
                "The MCP server missing does not start: No such file or directory: FOLDER/none.",
                "The MCP server ends does not start: Connection closed (There is no key.).",
                "The MCP server away does not start: All connection attempts failed.",
            ]
        )


async def test_the_example_of_the_docs_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "tools.md").read_text("utf-8")
    for name, language in (("calculator.py", "python"), ("mcp.json", "json")):
        (tmp_path / name).write_text(page.split(f"```{language}\n")[1].split("```")[0])
    (server,) = read_server_file(tmp_path / "mcp.json")
    assert server.command == "python"
    async with running(server.model_copy(update={"command": sys.executable})) as tools:
        assert said(await tools.run(call("add", a=2.5, b=4))) == ("6.5", False)


async def test_tools_are_called_over_http_and_what_they_say_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tools, "MOST_ANSWER", 1 << 16)
    app = mcp_server.server.streamable_http_app()
    web = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    listening = socket.create_server(("127.0.0.1", 0))  # whoever connects waits until it serves
    serving = asyncio.create_task(web.serve([listening]))
    try:
        async with running(
            ToolServerEntry(name="web", url=f"http://127.0.0.1:{listening.getsockname()[1]}/mcp")
        ) as tools:
            assert said(await tools.run(call("add", a=2, b=3))) == ("5", False)
            assert said(await tools.run(call("long", characters=1 << 16))) == (
                "The MCP server web refuses the call: Failed to parse JSON response: it has more than 65,536 bytes.",
                True,
            )
    finally:
        web.should_exit = True
        await serving


SCHEMA = {"type": "object", "properties": {}}


def test_what_cannot_be_offered_is_left_out_with_a_word_and_costs_no_other() -> None:
    bad = Tool(name="bad", input_schema={"type": "object", "properties": {"a": {"type": 3}}})
    twice = [Tool(name="add", input_schema=SCHEMA)] * 3
    offered, problems = offered_tools({"one": [bad, *twice]})
    assert [each.name for each in offered] == ["add", "one_add"]
    assert problems == [
        "The tool bad of one is left out: In the schema of bad.a, type is not a name or a list of names.",
        "The tool add of one is left out: Two tools have the name one_add.",
    ]
    many = [Tool(name=f"tool{number}", input_schema=SCHEMA) for number in range(MOST_TOOLS + 30)]
    offered, problems = offered_tools({"one": many})
    assert (len(offered), problems) == (MOST_TOOLS, [f"The tools of one from tool{MOST_TOOLS} on are left out."])
    assert len(offered_tools({"one": [bad] * 100})[1]) == MOST_PROBLEMS + 1


FOLDER = Path("/folder")


def test_variables_of_the_environment_are_put_in() -> None:
    entry = {"command": "${BIN}/x", "args": ["${HOME_OF:-/srv}", "$BIN", "${input:key}"], "env": {"KEY": "k${env:BIN}"}}
    web = {"url": "http://${BIN}", "headers": {"Authorization": "Bearer ${BIN}"}}
    program, address = parse_servers({"mcpServers": {"a": entry, "b": web}}, FOLDER, {"BIN": "bin"})
    assert (program.command, program.args) == ("bin/x", ["/srv", "$BIN", "${input:key}"])
    assert program.env == {"KEY": "kbin"}
    assert (address.url, address.headers) == ("http://bin", {"Authorization": "Bearer bin"})


@pytest.mark.parametrize(("value", "words"), [
    ([], "the whole file: expected a JSON object"),
    ({"servers": {}}, "mcpServers: field required"),
    ({"mcpServers": {"a": {"command": "x", "args": "-y"}}}, "mcpServers.a.args: expected a list"),
    ({"mcpServers": {"a": {"command": "${NOWHERE}"}}}, "'a' needs the variable NOWHERE, which is not set"),
    ({"mcpServers": {"a": {}}}, "the server 'a' needs a command or a url, and not both"),
    ({"mcpServers": {"a": {"command": "x", "url": "http://x"}}}, "needs a command or a url, and not both"),
    ({"mcpServers": {"a": {"url": "http://x", "type": "sse"}}}, "'a' is of the type 'sse'"),
    ({"mcpServers": {"a": {"url": "file:///x"}}}, "does not begin with http:// or https://"),
])  # fmt: skip
def test_what_cannot_be_used_is_named(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        parse_servers(value, FOLDER)
    assert words in str(raised.value)


@pytest.mark.parametrize("text", [None, "", "{", " " * (MOST_BYTES + 1)])
def test_a_file_that_cannot_be_read_is_a_users_error(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "mcp.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=r"mcp\.json"):
        read_server_file(path)
