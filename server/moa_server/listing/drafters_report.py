"""The list of drafters, for people and for programs. Pure."""

from __future__ import annotations

import json

from moa_shared.drafter.choice.choosing import Fit
from moa_shared.programs.table import table

from moa_server.listing.drafters import DrafterList, DrafterLocation, ListedDrafter

_NOT_HERE = "{model} is not on this machine: drafters that fit it only by their sizes are not listed.\n"
_NONE = "No drafter for {model} is known. `moa-train fit` makes one, and --drafter takes any folder or id on the hub.\n"


def drafters_text(listed: DrafterList) -> str:
    """The list for people."""
    note = "" if listed.is_here else _NOT_HERE.format(model=listed.model)
    if not listed.drafters:
        return _NONE.format(model=listed.model) + note
    rows = [("drafter", "kind", "where", "trained for", "licence", "measured here")]
    rows += [
        (
            each.name,
            each.kind.label,
            _place(each),
            each.target or "not said",
            each.licence or "see its page",
            _measured(each),
        )
        for each in listed.drafters
    ]
    return table(rows) + note + _next_words(listed)


def drafters_json(listed: DrafterList) -> str:
    """The list for programs."""
    drafters = [
        {
            "name": each.name,
            "kind": each.kind.value,
            "where": each.place.value,
            "trained_for": each.target or None,
            "fits_by": each.fit.value,
            "runs": each.is_run,
            "licence": each.licence or None,
            "seen": each.seen or None,
            "measured": {
                "tokens": each.measured.tokens,
                "right": each.measured.right,
                "looked_up": each.measured.looked_up,
                "dropped": each.measured.is_dropped,
            }
            if each.measured is not None
            else None,
        }
        for each in listed.drafters
    ]
    told = {"model": listed.model, "on_this_machine": listed.is_here, "drafters": drafters}
    return json.dumps(told, indent=2) + "\n"


def _place(each: ListedDrafter) -> str:
    return each.place.value if each.is_run else f"{each.place.value}, not run by this version"


def _measured(each: ListedDrafter) -> str:
    measured = each.measured
    if measured is None:
        return "-"
    words = f"{measured.right_share:.0%} right, look-up {measured.looked_up / measured.tokens:.0%}"
    return f"{words}, dropped" if measured.is_dropped else words


def _next_words(listed: DrafterList) -> str:
    """What to do with it."""
    first = next((each for each in listed.drafters if each.is_run and each.fit is Fit.MODEL), None)
    if first is None:
        return ""
    if first.place is DrafterLocation.HUB:
        return f"To fetch one and use it: moa-server serve {listed.model} --drafter {first.name}\n"
    return f"`moa-server serve {listed.model}` takes the best one that is here.\n"
