from __future__ import annotations

import numpy as np
import pytest
import torch
from moa_server.verifier.paged.pool import as_array, over_arrays


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_array_has_the_numbers_of_its_tensor(dtype: torch.dtype) -> None:
    tensor = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float32).to(dtype)
    array = as_array(tensor.requires_grad_())
    assert array.dtype == np.float32
    assert array.tolist() == tensor.tolist()


def test_a_function_over_tensors_runs_in_its_own_dtype_and_without_gradients() -> None:
    seen: list[torch.Tensor] = []

    def double(rows: torch.Tensor) -> torch.Tensor:
        seen.append(rows)
        return 2 * rows

    run = over_arrays(double, torch.bfloat16, torch.device("cpu"))
    out = run(np.array([[1.0, 1.001]], np.float32))
    assert out.dtype == np.float32
    assert out.tolist() == [[2.0, 2.0]]
    assert seen[0].dtype == torch.bfloat16
    assert seen[0].is_inference()
