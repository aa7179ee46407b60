"""A function from a table, with the options a config gave it, to be called when the rest of its arguments are known."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Recipe:
    """`Recipe("dirichlet", dirichlet, {"alpha": 0.3})(labels=..., clients=..., seed=...)`."""

    context: ClassVar[tuple[str, ...]] = ()  # the arguments that the caller supplies, never a config

    name: str
    function: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parameters = inspect.signature(self.function).parameters
        defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty and n not in self.context}
        object.__setattr__(self, "options", {**defaults, **self.options})  # spelled out, so that equal means equal

    def __call__(self, **context: Any) -> Any:
        """Call the function with its options and as much of the context as it takes."""
        parameters = inspect.signature(self.function).parameters
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        known = {name: value for name, value in context.items() if takes_all or name in parameters}
        return self.function(**{**known, **self.options})
