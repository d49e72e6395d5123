"""From a name that `moa-server models` shows to the model."""

from __future__ import annotations

from collections.abc import Iterable

from moa_shared.errors import ModelSourceError
from moa_shared.models.library.local_model import LocalModel

_OTHER = "Choose another model: `moa-server models` shows which are served."
_LATEST = ":latest"  # which ollama's users leave out


def find_model(name: str, models: Iterable[LocalModel]) -> LocalModel | None:
    """The model of that name; where none is called exactly so, upper and lower case do not matter.

    Raises:
        ModelSourceError: several are, or the one has a fault that shows in its place.
    """
    candidates = list(models)
    for wanted in (name, f"{name}{_LATEST}"):
        for same in (str, str.casefold):
            found = [model for model in candidates if same(model.name) == same(wanted)]
            if len(found) > 1:
                which = ", ".join(f"{model.name} of {model.place} ({model.path})" for model in found)
                raise ModelSourceError(f"{name!r} may mean several models: {which}.", hint="Name one by its path.")
            if found and found[0].refusal:
                raise ModelSourceError(f"{found[0].name} {found[0].refusal}.", hint=_OTHER)
            if found:
                return found[0]
    return None
