"""A function from a table with a config's options, called once its other arguments are known."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedwsq.core.errors import ConfigError


@dataclass(frozen=True)
class Recipe:
    """`Recipe("dirichlet", dirichlet, {"alpha": 0.3})(labels=..., clients=..., seed=...)`."""

    # The arguments that the caller supplies, never a config.
    context: ClassVar[tuple[str, ...]] = ()
    # Where a config sets its options: `data` for data.root; "" where it is better left unsaid.
    place: ClassVar[str] = ""

    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        possible = self.settings.items()
        defaults = {name: p.default for name, p in possible if p.default is not p.empty}
        # Spelled out, so that recipes which do the same compare as equal.
        object.__setattr__(self, "options", {**defaults, **self.options})

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """The arguments that a config may give."""
        try:
            parameters = inspect.signature(self.function).parameters
        except (TypeError, ValueError):
            raise ConfigError(
                f"{self.name} is not a function whose arguments can be read"
            ) from None
        return {name: p for name, p in parameters.items() if name not in self.context}

    def __call__(self, **context: Any) -> Any:
        """Call the function with its options and as much of the context as it takes."""
        signature = inspect.signature(self.function)
        takes_all = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        if not takes_all:
            context = {name: x for name, x in context.items() if name in signature.parameters}
        self._require_options(context)
        # Asked first: a TypeError out of the function itself is not one of the config.
        try:
            signature.bind(**context, **self.options)
        except TypeError as error:
            given = ", ".join((*context, *self.options)) or "nothing"
            raise ConfigError(f"{self.name} cannot be called with {given}: {error}") from None
        return self.function(**context, **self.options)

    def _require_options(self, context: Mapping[str, Any]) -> None:
        """Refuse to go on without an option that has no default, and say how it is set."""
        for name, p in self.settings.items():
            several = p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
            if p.default is p.empty and not several and name not in (*context, *self.options):
                how = f"; set {self.place}.{name}=..." if self.place else ""
                raise ConfigError(f"{self.name} needs {name}, and has no default for it{how}")
