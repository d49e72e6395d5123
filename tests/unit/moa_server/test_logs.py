import io
import json
from typing import Any

import pytest
import structlog
from moa_server.logs import configure_logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("log_format", "out", "is_json"),
    [("auto", io.StringIO(), True), ("auto", Terminal(), False), ("plain", io.StringIO(), False), ("json", Terminal(), True)],
)  # fmt: skip
def test_format(log_format: Any, out: io.StringIO, is_json: bool) -> None:
    assert configure_logs(log_format, "info", out) is is_json
    structlog.get_logger().info("serving", port=5)
    text = out.getvalue()
    assert "serving" in text
    assert text.startswith("{") is is_json
    if is_json:
        assert {"event": "serving", "port": 5, "level": "info"}.items() <= json.loads(text).items()


def test_events_below_the_level_are_dropped_and_an_exception_is_one_line() -> None:
    out = io.StringIO()
    configure_logs("json", "warning", out)
    structlog.get_logger().info("quiet")
    structlog.get_logger().error("session failed", exc_info=ValueError("out of memory"))
    (line,) = out.getvalue().splitlines()
    assert json.loads(line)["exception"][0]["exc_value"] == "out of memory"


def test_what_a_client_wrote_is_clipped_and_harmless() -> None:
    out = Terminal()
    configure_logs("plain", "info", out)
    structlog.get_logger().info("call refused", reason="\x1b]52;c;aGk=\x07" + "n" * 900_000)
    assert len(out.getvalue()) < 1000
    assert "\x1b]52" not in out.getvalue()
    assert "(900012 characters)" in out.getvalue()


@pytest.mark.parametrize("log_format", ["plain", "json"])
def test_tracebacks_come_without_what_variables_hold(log_format: Any) -> None:
    out = io.StringIO()
    configure_logs(log_format, "info", out)
    conversation = " ".join(("the", "user's", "secret"))
    try:
        raise ValueError(f"{len(conversation)} characters")
    except ValueError:
        structlog.get_logger().exception("call failed")
    assert "17 characters" in out.getvalue()
    assert "secret" not in out.getvalue()
