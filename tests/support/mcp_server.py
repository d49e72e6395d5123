"""An MCP server for tests, over stdio: `python tests/support/mcp_server.py`. With a word, it fails in that way."""

import asyncio
import os
import sys

from mcp.server import MCPServer
from mcp.types import ImageContent, TextContent

server = MCPServer("test")


@server.tool()
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("it is broken")


@server.tool()
def end() -> str:
    """Ends the program."""
    os._exit(3)


@server.tool()
async def hang() -> str:
    """Answers never."""
    await asyncio.Event().wait()
    return ""


@server.tool()
def long(characters: int) -> str:
    """Says much."""
    return "x" * characters


@server.tool()
def picture() -> list[TextContent | ImageContent]:
    """Shows a picture."""
    return [TextContent(text="See:"), ImageContent(data="AAAA", mime_type="image/png")]


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["end"]:
            sys.exit("There is no key.")
        case ["silent"]:
            sys.stdin.read()
    server.run()
