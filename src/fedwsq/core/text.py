"""Text from anywhere, made fit for a terminal or a log."""


def printable(text: str) -> str:
    """What would steer a terminal is spelled out; lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in text)
