"""What all parts of a request have in common: how fields are read, and how one is refused by its name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from moa_shared.errors import ConfigError
from pydantic import BaseModel, ConfigDict

from moa_client.web.error_form import RequestError


class RequestFields(BaseModel):
    """A JSON object in a request: types are not converted, and unknown fields are errors."""

    model_config = ConfigDict(strict=True, extra="forbid")


def refused(param: str, words: str) -> RequestError:
    """The refusal of a parameter, whose value cannot be used."""
    return RequestError(400, f"{param}: {words}.", param=param, code="invalid_value")


@contextmanager
def refusing(param: str) -> Iterator[None]:
    """Refuses the parameter if the block finds that it cannot be used.

    Raises:
        RequestError: it does.
    """
    try:
        yield
    except ConfigError as error:
        raise refused(param, f"{error.message} {error.hint}".rstrip(" .")) from None
