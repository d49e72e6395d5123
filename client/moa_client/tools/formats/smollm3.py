"""SmolLM3: as Hermes with its `xml_tools`, Python in `<code>` with its `python_tools`. Pure.

Tools are offered as `xml_tools`. Python is read as calls where it is nothing but calls.
Source: the chat template of HuggingFaceTB/SmolLM3-3B. It writes neither earlier calls nor marks results
(discussions 41 and 44 there): both are written into messages as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from moa_client.tools.formats.hermes import Hermes
from moa_client.tools.reading.calls import Calls
from moa_client.tools.reading.python_calls import read_python
from moa_client.tools.reading.steps import Steps, skip_space
from moa_client.tools.tool import Tool

CODE, CODE_END = "<code>", "</code>"


class SmolLM3(Hermes):
    """Hermes' form, or `<code>f(a=1)</code>`."""

    likely_openings: ClassVar = (CODE,)

    def detect(self, chat_template: str) -> bool:
        return "xml_tools" in chat_template

    def read_calls(self, opening: str, calls: Calls) -> Steps[None]:
        if opening == CODE:
            yield from read_python((yield from skip_space()), CODE_END, calls)
        else:
            yield from super().read_calls(opening, calls)

    def template_arguments(self, tools: Sequence[Tool]) -> dict[str, Any]:
        return {"xml_tools": [tool.function() for tool in tools]}
