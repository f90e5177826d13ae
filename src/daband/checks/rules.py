"""A list of checks that run one after another; what fails says which rule it broke."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Checks"]

CheckT = TypeVar("CheckT", bound=Callable[..., None])


class Checks(list[Callable[..., None]]):
    """Checks in their order; each is a function whose docstring is its rule."""

    def add(self, check: CheckT) -> CheckT:
        """A decorator: the check joins the list."""
        self.append(check)
        return check

    def run(self, *what: Any) -> None:
        """Call every check with ``what``; the error of the first that fails carries the check's rule as a note."""
        for check in self:
            try:
                check(*what)
            except Exception as error:
                rule = (inspect.getdoc(check) or "").partition("\n\n")[0].replace("\n", " ")
                error.add_note(f"daband.checks, {getattr(check, '__name__', check)}: {rule}")
                raise
