from __future__ import annotations

from inline_snapshot import snapshot
from moa_client.tools.formats.gemma3 import Gemma3
from moa_client.tools.formats.hermes import Hermes
from moa_client.tools.system_text import result_text, system_text
from moa_client.tools.tool import Tool, ToolResult

from tests.support.tool_calls import NOW, WEATHER


def test_the_text_of_hermes() -> None:
    assert system_text(Hermes(), [WEATHER, NOW]) == snapshot("""\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "get_weather", "description": "The weather of a place.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"], "additionalProperties": false}}}
{"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>\
""")


def test_the_text_of_gemma() -> None:
    product = Tool("f", "Finds {it}.", {"type": "object", "properties": {"PID": {"type": "string"}}})
    assert system_text(Gemma3(), [product]) == snapshot("""\
You have access to functions. If you decide to invoke any of the function(s),
you MUST put it in the format of
{"name": function name, "parameters": dictionary of argument name and its value}

You SHOULD NOT include any other text in the response if you call a function
[
  {
    "name": "f",
    "description": "Finds {it}.",
    "parameters": {
      "type": "object",
      "properties": {
        "PID": {
          "type": "string"
        }
      }
    }
  }
]\
""")


def test_a_result() -> None:
    assert result_text(ToolResult("call_1", "now", "12:00")) == "<tool_response>\n12:00\n</tool_response>"
