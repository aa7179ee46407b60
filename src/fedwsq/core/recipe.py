"""A function from a table, with the options a config gave it, to be called when the rest of its arguments are known."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedwsq.core.errors import ConfigError


@dataclass(frozen=True)
class Recipe:
    """`Recipe("dirichlet", dirichlet, {"alpha": 0.3})(labels=..., clients=..., seed=...)`."""

    context: ClassVar[
        tuple[str, ...]
    ] = ()  # the arguments that the caller supplies, never a config

    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        defaults = {
            name: p.default for name, p in self.settings.items() if p.default is not p.empty
        }
        object.__setattr__(
            self, "options", {**defaults, **self.options}
        )  # spelled out, so that equal means equal

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
        known = {
            name: value
            for name, value in context.items()
            if takes_all or name in signature.parameters
        }
        try:
            signature.bind(**known, **self.options)
        except TypeError as error:
            given = ", ".join((*known, *self.options)) or "nothing"
            raise ConfigError(f"{self.name} cannot be called with {given}: {error}") from None
        return self.function(**known, **self.options)
