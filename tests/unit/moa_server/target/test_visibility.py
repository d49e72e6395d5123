from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.target.visibility import tail_depths
from moa_shared.errors import TreeError

any_parents = st.integers(1, 12).flatmap(lambda count: st.tuples(*(st.integers(-1, node - 1) for node in range(count))))


@given(any_parents)
def test_depth_is_the_number_of_ancestors(parents: tuple[int, ...]) -> None:
    depths = tail_depths(parents)
    for node, parent in enumerate(parents):
        assert depths[node] == (0 if parent < 0 else depths[parent] + 1)


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-1, 0, 5], [-2]])
def test_a_parent_behind_its_child_is_refused(parents: list[int]) -> None:
    with pytest.raises(TreeError, match="expected a number from -1 to"):
        tail_depths(parents)
