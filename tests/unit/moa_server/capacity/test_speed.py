from __future__ import annotations

from moa_server.capacity.speed import Speed, measure_speed, users_fed
from moa_server.verifier.execution_level import Execution

from tests.support.tiny_models import tiny_kernel_target, tiny_model


def test_users_share_a_forward() -> None:
    speed = Speed(step_ms=50.0, row_ms=10.0, read_ms=2.5)
    assert users_fed(speed, prompt_tokens=0.0, tokens_per_s=5.0) == 16  # 40 + 16 * 10 ms for a token each
    assert users_fed(speed, prompt_tokens=2.0, tokens_per_s=5.0) == 10  # and for each, two tokens of a prompt
    assert users_fed(speed, prompt_tokens=0.0, tokens_per_s=20.0) == 1
    assert users_fed(speed, prompt_tokens=0.0, tokens_per_s=21.0) == 0


def test_a_target_is_measured() -> None:
    target = tiny_kernel_target(tiny_model())
    speed = measure_speed(Execution("int8", target, "", lambda: None))
    assert speed.step_ms > 0
    assert speed.row_ms >= 0
    assert speed.read_ms > 0
