"""The tools of MCP servers that a user's settings name. The package `mcp`, and pydantic, are imported only then."""

from contextlib import AsyncExitStack
from pathlib import Path

from moa_shared.programs.entry import missing_extra

from moa_client.tools.tool import ToolBox


async def open_tools(path: Path | None, stack: AsyncExitStack) -> ToolBox | None:
    """The tools of the servers that a file names, started; None: no file is named."""
    if path is None:
        return None
    from moa_client.mcp.server_file import read_server_file

    entries = read_server_file(path)
    try:
        from moa_client.mcp.mcp_tools import McpTools
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from None
    tools = McpTools(entries)
    stack.push_async_callback(tools.close)
    await tools.start()
    return tools
