"""What becomes of an unforeseen exception: surfaces are told in one sentence, the log has the rest.

Each task of a conversation ends in an event, whatever was raised in it. A panic of a package in Rust is no Exception,
so BaseException is caught; what ends a task or the program passes.
"""

import asyncio
import logging

from moa_shared.errors import InternalError, MoaError

ENDING = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
log = logging.getLogger(__name__)


def told(error: BaseException, what: str = "The conversation") -> MoaError:
    """What surfaces are told of an exception, which is raised again if it ends a task or the program."""
    if isinstance(error, ENDING):
        raise error
    if isinstance(error, MoaError):
        return error
    log.error("%s has failed", what, exc_info=error)
    return InternalError(f"{what} has failed ({type(error).__name__}).")
