"""The reference of the profile format, made from the models themselves: `netsim show --fields`."""

from __future__ import annotations

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from netsim.profile.profiles import (
    BernoulliFields,
    DelayFields,
    DirectionFields,
    EventFields,
    GilbertElliottFields,
    Profile,
)

SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("Profile", Profile),
    ("`delay`", DelayFields),
    ("`loss`, model bernoulli", BernoulliFields),
    ("`loss`, model gilbert_elliott", GilbertElliottFields),
    ("`up` and `down`", DirectionFields),
    ("`timeline`, each event", EventFields),
)


def fields_markdown() -> str:
    """One table per model: field, default, meaning."""
    parts = []
    for title, model in SECTIONS:
        rows = [f"**{title}**", "", "| field | default | meaning |", "| --- | --- | --- |"]
        for name, field in model.model_fields.items():
            rows.append(f"| `{name}` | {_default(field.is_required(), field.default)} | {field.description} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _default(required: bool, value: object) -> str:
    if required:
        return "required"
    if value is None or value is PydanticUndefined or value == ():
        return "none"
    if isinstance(value, BernoulliFields):
        return "no loss"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"
