from __future__ import annotations

from unittest.mock import create_autospec

from moa_server.access.limits import TokenMeter
from moa_server.engine.live_session import Account
from moa_shared.errors import RateLimitError


def test_an_answer_pays_for_what_was_computed_and_pauses_when_its_limit_is_used_up() -> None:
    meter = create_autospec(TokenMeter, instance=True)
    meter.refusal.return_value = RateLimitError("too many")
    account = Account()
    account.let_in(meter)
    meter.begin.assert_called_once_with()
    assert account.pay(5, 0, answering=True) is None  # a part of a prompt is read to its end
    assert account.pay(0, 1, answering=True) is meter.refusal.return_value
    assert [call.args for call in meter.read.call_args_list] == [(5,), (0,)]
    assert [call.args for call in meter.write.call_args_list] == [(0,), (1,)]


def test_an_answer_that_has_ended_gives_back_what_it_did_not_use() -> None:
    meter = create_autospec(TokenMeter, instance=True)
    account = Account()
    account.let_in(meter)
    assert account.pay(0, 3, answering=False) is None
    meter.end.assert_called_once_with()


def test_a_new_meter_ends_the_one_before_it() -> None:
    first, second = (create_autospec(TokenMeter, instance=True) for _ in range(2))
    account = Account()
    account.let_in(first)
    account.let_in(second)
    first.end.assert_called_once_with()
    assert account.meter is second
