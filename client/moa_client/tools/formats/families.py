"""All forms of calls, and which of them a model writes. Pure."""

from __future__ import annotations

from moa_client.tools.formats.base import ToolFormat
from moa_client.tools.formats.gemma4 import Gemma4
from moa_client.tools.formats.harmony import Harmony
from moa_client.tools.formats.json_calls import Gemma3, Hermes, Llama, Mistral, Mistral11, SmolLM3
from moa_client.tools.formats.qwen_xml import QwenXml

# The more special before the more general, whose marks they share.
FORMATS: tuple[ToolFormat, ...] = (
    Harmony(),
    Gemma4(),
    SmolLM3(),
    QwenXml(),
    Hermes(),
    Mistral11(),
    Mistral(),
    Llama(),
    Gemma3(),
)
DEFAULT = Hermes()  # what a model is told to write whose template knows no calls


def find_format(chat_template: str) -> ToolFormat:
    """The form in which a model with this chat template writes calls."""
    return next((each for each in FORMATS if each.detect(chat_template)), DEFAULT)
