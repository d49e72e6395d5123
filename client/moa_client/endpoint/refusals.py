"""The names in requests that would change an answer and that moa has nothing for: they are refused. Pure.

Whatever else is unknown is ignored, at every depth: vendors add fields each month, and programs send them back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a name is refused.

    Args:
        harmless: the values that ask for nothing special; null always is one.
    """

    words: str
    harmless: tuple[Any, ...]

    def allows(self, value: object) -> bool:
        """Whether a value asks for nothing special; numbers and truth values are told apart."""
        return value is None or any(
            value == each and isinstance(value, bool) == isinstance(each, bool) for each in self.harmless
        )


def refused_table() -> str:
    """The names as a Markdown table, with their harmless values; an error says why each is refused."""
    lines = ["| in | names |", "| --- | --- |"]
    for where, refusals in (("a request", REFUSED), ("a message", REFUSED_IN_MESSAGES)):
        lines.append(f"| {where} | {', '.join(_shown(*each) for each in refusals.items())} |")
    return "\n".join(lines) + "\n"


def _shown(name: str, refusal: Refusal) -> str:
    values = " or ".join(f"`{json.dumps(value)}`" for value in refusal.harmless)
    return f"`{name}` ({values})" if values else f"`{name}`"


def _refusals(words: str, **harmless: Any) -> dict[str, Refusal]:
    """Names with their one harmless value; ...: there is none."""
    return {name: Refusal(words, () if value is ... else (value,)) for name, value in harmless.items()}


REFUSED: Mapping[str, Refusal] = {
    **_refusals("There is no such sampler.", mirostat=0, tfs_z=1, typical_p=1, top_a=0, top_n_sigma=-1),
    **_refusals("There is no such sampler.", dry_multiplier=0, dynatemp_range=0, xtc_probability=0),
    **_refusals("There is no such sampler.", use_beam_search=False, length_penalty=1, penalize_newline=True),
    **_refusals("Send `repeat_penalty`, which is another measure.", repetition_penalty=1),
    **_refusals("Answers end where the model ends them.", min_tokens=0, ignore_eos=False, stop_token_ids=[]),
    **_refusals("Send `logit_bias`.", bad_words=[]),
    **_refusals("Send `structured_outputs`.", guided_json=..., guided_regex=..., guided_choice=...),
    **_refusals("Send `structured_outputs`.", guided_grammar=..., grammar="", json_schema=...),
    **_refusals("Send `output_config.format`, or `response_format`.", output_format=...),
    **_refusals("In this API it has another name.", max_tokens=..., max_completion_tokens=..., max_output_tokens=...),
    **_refusals("In this API it has another name.", stop_sequences=[], num_predict=..., response_format=...),
    **_refusals("Ask several times, or `/v1/chat/completions`.", n=1),
    **_refusals("Ask `/v1/chat/completions`.", logprobs=False, top_logprobs=0),
    **_refusals("No answer is better than another here: ask for several with `n`.", best_of=1),
    **_refusals("Texts are only continued at their end.", suffix=""),
    **_refusals("Answers are not continued.", prefill=..., continue_final_message=False),
    **_refusals("The older form of `tools`: send these.", functions=[]),
    "function_call": Refusal("The older form of `tool_choice`: send that.", ("none", "auto")),
    **_refusals("Tools run where the program runs.", mcp_servers=[], container=..., web_search_options=...),
    **_refusals("Answers are text.", modalities=["text"], audio=..., width=0, height=0, steps=0),
    **_refusals("Models read text only.", images=[]),
    **_refusals("Models answer as their chat template has it.", verbosity="medium"),
    **_refusals("The model's own is used.", template=""),
    **_refusals("Send its text as messages.", prompt=..., context=[]),
    **_refusals("Continue a response with `previous_response_id`.", conversation=...),
    **_refusals("A response is made while its client waits.", background=False),
    **_refusals("Vectors are as wide as the model's states.", dimensions=...),
}
REFUSED_IN_MESSAGES: Mapping[str, Refusal] = {
    **_refusals("The older form of `tool_calls`: send these.", function_call=...),
    **_refusals("Models read text only.", audio=..., images=[]),
    **_refusals("Answers are not continued.", prefix=False, partial=False),
}
