"""Checks one after another; what fails says which rule it broke."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["run_checks"]


def run_checks(checks: Iterable[Callable[..., None]], *what: Any) -> None:
    """Call every check with ``what``; the error of the first that fails carries the check's rule as a note."""
    for check in checks:
        try:
            check(*what)
        except Exception as error:
            rule = (inspect.getdoc(check) or "").partition("\n\n")[0].replace("\n", " ")
            error.add_note(f"daband.checks, {getattr(check, '__name__', check)}: {rule}")
            raise
