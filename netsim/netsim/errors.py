"""The errors that netsim shows to its user: one clear sentence, a hint that says what to do, and an exit status."""


class NetsimError(Exception):
    """What the command line prints: `message` says what is wrong, `hint` what to do next. It ends with `exit_code`.

    Itself: a link, a measurement or a report failed.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(NetsimError):
    """An option, a profile, a trace, an event or an address cannot be used."""

    exit_code = 2


class PrivilegeError(NetsimError):
    """The backend needs root."""

    exit_code = 77  # EX_NOPERM of sysexits.h


class CommandError(NetsimError):
    """The command to run does not start."""

    exit_code = 127  # what a shell answers for a command it cannot find
