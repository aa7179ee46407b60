"""Errors a user can act on. The command line prints them as one line and exits with 2."""

import difflib
from collections.abc import Iterable


class FedwsqError(Exception):
    """Something the caller can put right; its text names the value, the rule and the way out."""


class ConfigError(FedwsqError, ValueError):
    """A setting, or a combination of settings, that no run can have."""


class DataError(FedwsqError):
    """A data set that is missing, damaged or not what it claims to be."""


class MessageError(FedwsqError, ValueError):
    """Bytes that are not a valid message of this run."""


class UpdateError(FedwsqError, ValueError):
    """A client's update that must not reach the model: not finite, or of no examples."""


class RunError(FedwsqError):
    """A run directory that is in use, already taken, damaged or from another version."""


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """The end of an error about an unknown word: the known one that is most like it, if any is."""
    close = difflib.get_close_matches(str(word), map(str, known), n=1)
    if not close:
        return ""
    return f"; did you mean {close[0]}?"
