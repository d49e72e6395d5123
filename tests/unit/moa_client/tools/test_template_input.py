from __future__ import annotations

from moa_client.tools.formats.families import find_format
from moa_client.tools.template_input import ChatMessage, TemplateInput, template_input
from moa_client.tools.tool import ToolResult, mistral_id

from tests.support.family_templates import FAMILY_TEMPLATES
from tests.support.tool_calls import NOW, WEATHER, call

ASKED = ChatMessage("user", "Paris?")
CALLED = ChatMessage("assistant", "Let me see.", (call("get_weather", city="Paris"), call("now", 1)))
RESULTS = [ToolResult("call_0", "get_weather", "sunny"), ToolResult("call_1", "now", "12:00")]
THEN = ChatMessage("user", "And Rome?")
MESSAGES: list[ChatMessage | ToolResult] = [ASKED, CALLED, *RESULTS, THEN]
TOOLS = [WEATHER, NOW]
QWEN = "{%- if tools %}{{ tools }}{% endif %}{% for tool_call in message.tool_calls %}<tool_call>{% endfor %}"


def rendered(chat_template: str, *, offers_tools: bool = True) -> TemplateInput:
    return template_input(find_format(chat_template), chat_template, MESSAGES, TOOLS if offers_tools else [])


def test_a_template_that_knows_tools_gets_all_as_it_is() -> None:
    given = rendered(QWEN)
    assert given.messages == [
        {"role": "user", "content": "Paris?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {
                    "id": "call_0",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": {"city": "Paris"}},
                },
                {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": {}}},
            ],
        },
        {"role": "tool", "name": "get_weather", "tool_call_id": "call_0", "content": "sunny"},
        {"role": "tool", "name": "now", "tool_call_id": "call_1", "content": "12:00"},
        {"role": "user", "content": "And Rome?"},
    ]
    assert [tool["function"]["name"] for tool in given.arguments["tools"]] == ["get_weather", "now"]


def test_mistral_gets_ids_that_it_takes() -> None:
    given = rendered("{{ tools }}[TOOL_CALLS]{{ message.tool_calls }}")
    assert given.messages[1]["tool_calls"][0]["id"] == given.messages[2]["tool_call_id"] == mistral_id("call_0")


def test_a_template_that_knows_none_gets_text() -> None:
    chat_template = FAMILY_TEMPLATES["phi 4"]
    form = find_format(chat_template)
    given = rendered(chat_template)
    assert given.arguments == {}
    assert given.messages == [
        {"role": "system", "content": form.render_tools(TOOLS)},
        {"role": "user", "content": "Paris?"},
        {"role": "assistant", "content": form.render(CALLED.text, CALLED.calls)},
        {
            "role": "user",
            "content": "<tool_response>\nsunny\n</tool_response>\n<tool_response>\n12:00\n</tool_response>\nAnd Rome?",
        },
    ]


def test_the_system_prompt_comes_before_the_tools() -> None:
    messages = [ChatMessage("system", "Be brief."), ASKED]
    given = template_input(find_format(""), "", messages, TOOLS)
    assert [message["role"] for message in given.messages] == ["system", "user"]
    assert given.messages[0]["content"].startswith("Be brief.\n\n# Tools")


def test_a_template_that_knows_tools_but_no_calls() -> None:
    """SmolLM3's."""
    given = rendered("{% if xml_tools %}{{ xml_tools }}{% endif %}{{ message.content }}")
    assert given.arguments == {"xml_tools": [WEATHER.function(), NOW.function()]}
    assert [message["role"] for message in given.messages] == ["user", "assistant", "user"]
    assert "<tool_call>" in given.messages[1]["content"]


def test_without_tools_nothing_is_told_of_them() -> None:
    assert rendered(QWEN, offers_tools=False).arguments == {}
    assert rendered("", offers_tools=False).messages[0] == {"role": "user", "content": "Paris?"}
