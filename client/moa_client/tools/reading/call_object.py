"""Reads calls that are JSON objects: `{"name": ..., "arguments": {...}}`. Pure."""

from __future__ import annotations

from moa_client.tools.reading.calls import Call, Calls
from moa_client.tools.reading.json_scanner import Mismatch, is_json
from moa_client.tools.reading.steps import Steps, read_json, read_string, skip_space

ARGUMENTS = ("arguments", "parameters")  # models mix them up


def read_call_object(calls: Calls) -> Steps[None]:
    """Reads a call after its first brace; its keys come in any order, and others than these are passed over."""
    call = calls.begin()
    has_arguments = False
    while True:
        key = yield from read_string((yield from skip_space()))
        if (yield from skip_space()) != ":":
            raise Mismatch
        char = yield from skip_space()
        after: str | None = None
        if key == "name":
            call.set_name((yield from read_string(char)))
        elif key in ARGUMENTS and not has_arguments:
            has_arguments = True
            yield from read_arguments(call, char)
        else:
            after = yield from read_json(char, lambda _: None)
        after = yield from skip_space(after)
        if after == "}":
            call.end()
            return
        if after != ",":
            raise Mismatch


def read_arguments(call: Call, first: str) -> Steps[None]:
    """Reads arguments that begin with `first`: an object, or a string that holds one."""
    if first == "{":
        yield from read_json(first, call.write)
        return
    text = yield from read_string(first)
    if not (text.lstrip().startswith("{") and is_json(text)):
        raise Mismatch
    call.write(text)


def read_call_list(calls: Calls) -> Steps[None]:
    """Reads a list of calls after its first bracket."""
    while True:
        if (yield from skip_space()) != "{":
            raise Mismatch
        yield from read_call_object(calls)
        char = yield from skip_space()
        if char == "]":
            return
        if char != ",":
            raise Mismatch
