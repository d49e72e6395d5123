"""What a surface may ask of an answer."""

from __future__ import annotations

import pytest
from moa_client.surface.messages import options_of
from moa_shared.errors import ConfigError
from moa_shared.sampling.chances import WantedChances


def test_a_surface_may_ask_for_chances() -> None:
    assert options_of({"chances": {"likeliest": 3, "processed": True}}).chances == WantedChances(3, processed=True)
    assert options_of({"chances": {}}).chances == WantedChances()
    assert options_of({}).chances is None


@pytest.mark.parametrize(
    ("chances", "message"),
    [
        (3, "The option chances cannot be 3"),
        ({"likeliest": 21}, "21 likeliest tokens were asked for, expected 0 to 20"),
        ({"likeliest": True}, "expected likeliest"),
        ({"processed": 1}, "expected likeliest"),
        ({"top": 1}, "expected likeliest"),
    ],
)
def test_chances_that_cannot_be_told_are_refused(chances: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options_of({"chances": chances})
