"""Which columns of a table mean what."""

from __future__ import annotations

from dataclasses import dataclass

from daband.errors import InvalidInput

__all__ = ["Columns"]


@dataclass(frozen=True)
class Columns:
    """Which columns mean what.

    ``context`` are the columns that a policy sees, ``categorical`` those of them that are one-hot, ``dates`` those that
    hold dates and become their parts. What arms pay is given in one of three ways: ``label`` (the arm named by this
    column pays 1, every other 0), ``rewards`` (a column per arm), or, for a log of another policy, ``arm``, ``reward``
    and ``propensity`` (without which ``from_table`` estimates propensities). A log may have ``label`` or ``rewards``
    besides: the target's test uses them. ``id`` names rows for people, in the questions of an audit. None of these
    columns may be a context.
    """

    context: tuple[str, ...]
    categorical: tuple[str, ...] = ()
    label: str | None = None
    rewards: tuple[str, ...] = ()
    arm: str | None = None
    reward: str | None = None
    propensity: str | None = None
    dates: tuple[str, ...] = ()
    id: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("context", "categorical", "rewards", "dates", "id"):
            if isinstance(getattr(self, name), str):
                raise InvalidInput(f"columns.{name} must be a sequence of names, got the text {getattr(self, name)!r}")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.context:
            raise InvalidInput("columns.context must name at least one column")
        for kind in ("categorical", "dates"):
            strangers = [name for name in getattr(self, kind) if name not in self.context]
            if strangers:
                raise InvalidInput(f"columns.{kind} names {strangers[0]!r}, which is not one of the context columns")
        if (self.arm or self.reward or self.propensity) and not (self.arm and self.reward):
            raise InvalidInput("a log needs both columns.arm and columns.reward, and columns.propensity if it has any")
        if (self.label is not None and self.rewards) or not (self.label or self.rewards or self.arm):
            raise InvalidInput("columns needs either a label column or a reward column per arm")
        for role in ("label", "rewards", "arm", "reward", "propensity", "id"):
            named = getattr(self, role)
            told = [name for name in (named if role in ("rewards", "id") else (named,)) if name in self.context]
            if told:
                raise InvalidInput(f"columns.context has {told[0]!r}, which columns.{role} names: no policy may see it")
