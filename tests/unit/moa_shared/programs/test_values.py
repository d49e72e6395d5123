import math
from pathlib import Path
from typing import Any, Literal

import pytest
from moa_shared.programs.config import read_value


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (int, "3", 3),
        (int, " -1_000 ", -1000),
        (int, "5.0", 5),
        (float, "1e-3", 0.001),
        (float, "inf", math.inf),
        (bool, "Yes", True),
        (bool, "off", False),
        (str, " as it is ", " as it is "),
        (str | None, None, None),
        (Path | None, "folder", Path("folder")),
        (Literal["a", "b"], "b", "b"),
        (tuple[str, ...], ["a", "b"], ("a", "b")),
    ],
)
def test_values_are_read_as_the_type_of_their_field(kind: Any, value: object, expected: object) -> None:
    read = read_value(kind, value)
    assert read == expected
    assert type(read) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (int, "x", "expected a whole number"),
        (int, "1.5", "expected a whole number"),
        (int, "9" * 5000, "expected a whole number"),
        (int, True, "expected a whole number"),
        (float, "x", "expected a number"),
        (bool, "perhaps", "expected on or off"),
        (str, 3, "expected text"),
        (Path | None, 3, "expected a path"),
        (Literal["a", "b", "c"], "d", "expected 'a', 'b' or 'c'"),
        (tuple[str, ...], "a", "expected a list of texts"),
        (tuple[str, ...], [1], "expected text"),
        (str, "caf\udce9", "expected text in UTF-8"),
        (tuple[str, ...], ["\udce9"], "expected text in UTF-8"),
    ],
)
def test_what_is_expected_instead(kind: Any, value: object, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_value(kind, value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("limits", "value", "message"),
    [
        ({"ge": 0}, -1.0, "expected at least 0"),
        ({"gt": 0}, 0.0, "expected more than 0"),
        ({"ge": 0, "le": 9}, 9.5, "expected at most 9"),
        ({"lt": 9}, 9.0, "expected less than 9"),
        ({"ge": 0}, math.nan, "expected at least 0"),
    ],
)
def test_limits(limits: dict[str, float], value: float, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_value(float, value, limits)
    assert str(caught.value) == message
