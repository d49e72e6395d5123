"""The errors that netsim shows to its user: one clear sentence, a hint that says what to do, and an exit status.

`NetsimError` is the root; the command line prints `message` and `hint` and ends with `exit_code`.
"""

from __future__ import annotations


class NetsimError(Exception):
    """An error that netsim shows to its user. `message` says what is wrong, `hint` what to do next."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ProfileError(NetsimError):
    """A profile is unknown or malformed."""

    exit_code = 2


class TraceError(NetsimError):
    """A trace is malformed; the message names file, line and column."""

    exit_code = 2


class EventError(NetsimError):
    """A timeline event or a change asked of a running link is malformed."""

    exit_code = 2


class AddressError(NetsimError):
    """An address is malformed, in use, or cannot be bound."""

    exit_code = 2


class PrivilegeError(NetsimError):
    """The backend needs root."""

    exit_code = 77  # EX_NOPERM of sysexits.h


class NamespaceError(NetsimError):
    """The kernel or iproute2 refused to build the namespaces."""

    exit_code = 1


class CommandError(NetsimError):
    """The command to run does not start."""

    exit_code = 127  # what a shell answers for a command it cannot find


class ControlError(NetsimError):
    """No running link answers, or it refused what was asked."""

    exit_code = 1


class MeasurementError(NetsimError):
    """A link could not be measured."""

    exit_code = 1


class ReportError(NetsimError):
    """A run's folder cannot be read, or plots cannot be drawn."""

    exit_code = 1
