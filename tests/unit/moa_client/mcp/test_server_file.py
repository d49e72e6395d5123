from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from moa_client.mcp.server_file import MOST_BYTES, parse_servers, read_server_file
from moa_shared.errors import ConfigError

FOLDER = Path("/folder")


def test_variables_of_the_environment_are_put_in() -> None:
    entry = {"command": "${BIN}/x", "args": ["${HOME_OF:-/srv}", "$BIN", "${input:key}"], "env": {"KEY": "k${env:BIN}"}}
    web = {"url": "http://${BIN}", "headers": {"Authorization": "Bearer ${BIN}"}}
    program, address = parse_servers({"mcpServers": {"a": entry, "b": web}}, FOLDER, {"BIN": "bin"})
    assert (program.command, program.arguments) == ("bin/x", ("/srv", "$BIN", "${input:key}"))
    assert program.environment == {"KEY": "kbin"}
    assert (address.url, address.headers) == ("http://bin", {"Authorization": "Bearer bin"})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([], "the whole file: expected a JSON object"),
        ({"servers": {}}, "mcpServers: field required"),
        ({"mcpServers": {"a": {"command": "x", "args": "-y"}}}, "mcpServers.a.args: expected a list"),
        ({"mcpServers": {"a": {"command": "${NOWHERE}"}}}, "'a' needs the variable NOWHERE, which is not set"),
        ({"mcpServers": {"a": {}}}, "the server 'a' needs a command or a url, and not both"),
        ({"mcpServers": {"a": {"command": "x", "url": "http://x"}}}, "needs a command or a url, and not both"),
        ({"mcpServers": {"a": {"url": "http://x", "type": "sse"}}}, "'a' is of the type 'sse'"),
        ({"mcpServers": {"a": {"url": "file:///x"}}}, "does not begin with http:// or https://"),
    ],
)
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
