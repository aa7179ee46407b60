"""How lines tell each other apart: colours that colour-blind people do not mix up, and dashes."""

from dataclasses import dataclass

# Okabe and Ito (2008), without the yellow that nobody sees on white.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
# For the lines after the seventh, fourteenth and twenty-first.
DASHES = ((), (7, 4), (2, 3), (9, 3, 2, 3))


@dataclass(frozen=True)
class Look:
    """Of one line, in every picture and on paper."""

    number: int  # of the colour
    dash: tuple[int, ...]

    @property
    def colour(self) -> str:
        return COLOURS[self.number]

    @property
    def css(self) -> str:
        """For a page, whose two themes have a tone each."""
        return f"var(--line-{self.number})"

    @property
    def dashes(self) -> str:
        return " ".join(map(str, self.dash)) or "none"


def look(number: int) -> Look:
    """Of the line with this number, from 0."""
    turn, colour = divmod(number, len(COLOURS))
    return Look(colour, DASHES[turn % len(DASHES)])
