"""What a model is told of tools whose chat template knows none. Pure.

Sources: the chat template of Qwen2.5 for Hermes' form, which the most models were trained on, and Google's page on
calls with Gemma 3, https://ai.google.dev/gemma/docs/capabilities/function-calling.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from moa_client.tools.formats.base import ToolFormat
from moa_client.tools.formats.gemma3 import Gemma3
from moa_client.tools.tool import Tool, ToolResult

_HERMES = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""
_GEMMA = """You have access to functions. If you decide to invoke any of the function(s),
you MUST put it in the format of
{{"name": function name, "parameters": dictionary of argument name and its value}}

You SHOULD NOT include any other text in the response if you call a function
{tools}"""


def system_text(form: ToolFormat, tools: Sequence[Tool]) -> str:
    """How the system prompt tells of tools, and of the form of calls."""
    if isinstance(form, Gemma3):
        return _GEMMA.format(tools=json.dumps([tool.function() for tool in tools], ensure_ascii=False, indent=2))
    lines = [json.dumps({"type": "function", "function": tool.function()}, ensure_ascii=False) for tool in tools]
    return _HERMES.format(tools="\n".join(lines))


def result_text(result: ToolResult) -> str:
    """How a message of the user tells what came of a call."""
    return f"<tool_response>\n{result.content}\n</tool_response>"
