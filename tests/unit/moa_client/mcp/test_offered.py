from __future__ import annotations

from moa_client.mcp.connection import ListedTool
from moa_client.mcp.mcp_tools import MOST_PROBLEMS, offered_tools
from moa_client.tools.tool import MOST_TOOLS

SCHEMA = {"type": "object", "properties": {}}


def test_what_cannot_be_offered_is_left_out_with_a_word_and_costs_no_other() -> None:
    bad = ListedTool("bad", "", {"type": "object", "properties": {"a": {"type": 3}}})
    twice = [ListedTool("add", "", SCHEMA)] * 3
    offered, problems = offered_tools({"one": [bad, *twice]})
    assert [each.name for each in offered] == ["add", "one_add"]
    assert problems == [
        "The tool bad of one is left out: In the schema of bad.a, type is not a name or a list of names.",
        "The tool add of one is left out: Two tools have the name one_add.",
    ]
    many = [ListedTool(f"tool{number}", "", SCHEMA) for number in range(MOST_TOOLS + 30)]
    offered, problems = offered_tools({"one": many})
    assert (len(offered), problems) == (MOST_TOOLS, [f"The tools of one from tool{MOST_TOOLS} on are left out."])
    assert len(offered_tools({"one": [bad] * 100})[1]) == MOST_PROBLEMS + 1
