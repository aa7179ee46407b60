"""Text from anywhere: read within bounds, and made fit for a terminal or a log."""

from pathlib import Path


def printable(text: str) -> str:
    """What would steer a terminal is spelled out; lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)


def read_text(path: Path, most: int, errors: str = "strict") -> str:
    """A file's text; ValueError if it is longer than `most` bytes, which no such file is."""
    with open(path, "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    # Some editors put a byte order mark before UTF-8.
    return data.decode("utf-8-sig", errors)
