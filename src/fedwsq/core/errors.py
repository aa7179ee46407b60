"""Errors a user can act on. The command line prints them as one line and exits with 2."""

import difflib
import errno
from collections.abc import Iterable
from pathlib import Path

from fedwsq.core.text import printable

MAX_TEXT = 4_000  # characters of an error: it may repeat what it refuses, at any length


class FedwsqError(Exception):
    """Something the caller can put right; its text names the value, the rule and the way out.

    Files and clients have their say in it, so that nothing in it can steer a terminal.
    """

    def __init__(self, text: str = "") -> None:
        if len(text) > MAX_TEXT:
            text = f"{text[:MAX_TEXT]} ... (cut short)"
        super().__init__(printable(text))


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


class StoreError(OSError):
    """What a client remembers cannot be kept or read: the fault of the machine that it lives on."""


def disk_is_full(error: OSError) -> bool:
    """Whether nothing more can be written: no space, or no more of what a user may have."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_trouble(error: OSError, folder: Path) -> tuple[str, str]:
    """What is wrong with the disk under a folder, and what to do about it."""
    if disk_is_full(error):
        return f"no space left for {folder}", "make room"
    if not folder.exists():
        return f"{folder} is gone", "put it back"
    if error.errno == errno.EROFS:
        return f"{folder} has become read-only", "make it writable"
    return f"{folder} cannot be used: {error.strerror or error}", "put that right"


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """The end of an error about an unknown word: the known one that is most like it, if any is."""
    close = nearest(word, known)
    return f"; did you mean {close}?" if close else ""


def nearest(word: object, known: Iterable[object]) -> str:
    """The known word that is most like this one, in whatever case; "" when none is like it."""
    by_folded = {str(each).casefold(): str(each) for each in known}
    folded = str(word).casefold()
    close = difflib.get_close_matches(folded, by_folded)
    # Letters in the wrong order before a wrong letter: `fedwqs` is fedwsq, not fedws.
    swapped = [each for each in close if sorted(each) == sorted(folded)]
    for each in swapped or close:
        return by_folded[each]
    return ""
