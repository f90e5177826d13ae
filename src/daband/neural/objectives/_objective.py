"""The objective: chosen terms, each with its weight and the schedule of that, added up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from daband._arguments import one_of
from daband.errors import InvalidInput
from daband.neural.objectives._term import Batch, Term, TermShape, terms

_SHAPES = ("constant", "linear", "sigmoid", "step")


@dataclass(frozen=True)
class Weight:
    """A weight with its schedule over the gradient steps of a run.

    ``shape`` "constant" is ``value`` from ``start`` on; "linear" grows from 0 to ``value`` over ``steps`` steps after
    ``start``; "sigmoid" does so as the ramp of domain-adversarial training does, ``2 / (1 + exp(-10 p)) - 1``; "step"
    is another word for a constant that starts late. Before ``start`` the weight is 0. ``start`` and ``steps`` below 1
    are shares of the run, so that a short run reaches what a long one does; from 1 on they are numbers of steps.

    A ``value`` of 0 removes the term: nothing of it is computed, and no random number is drawn for it.
    """

    value: float = 0.0
    shape: str = "constant"
    start: float = 0
    steps: float = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise InvalidInput(f"a weight must be a finite number >= 0, got {self.value}")
        one_of("the shape of a weight", self.shape, _SHAPES)
        if self.start < 0 or self.steps < 0:
            raise InvalidInput(f"start and steps of a weight must be >= 0, got {self.start} and {self.steps}")

    def __bool__(self) -> bool:
        return self.value > 0

    def full_at(self, run_steps: int) -> float:
        """The gradient step, of a run of so many, from which on the weight has its value."""
        ramp = 0.0 if self.shape in ("constant", "step") else _in_steps(self.steps, run_steps)
        return _in_steps(self.start, run_steps) + ramp

    def at(self, step: int, run_steps: int) -> float:
        """The weight at gradient step ``step`` of a run of ``run_steps``."""
        start, steps = _in_steps(self.start, run_steps), _in_steps(self.steps, run_steps)
        if step < start:
            return 0.0
        if steps == 0 or self.shape in ("constant", "step"):
            return self.value
        progress = min(1.0, (step - start) / steps)
        if self.shape == "sigmoid":
            progress = 2 / (1 + math.exp(-10 * progress)) - 1
        return self.value * progress


def _in_steps(number: float, run_steps: int) -> float:
    return number * run_steps if number < 1 else number


class Objective(nn.Module):
    """The weighted sum of registered terms.

    Terms of weight 0 are not built at all, so they cost nothing, draw no random number and leave no trace.
    """

    def __init__(self, *, weights: Mapping[str, Weight], shape: TermShape) -> None:
        super().__init__()
        self.weights = {name: weight for name, weight in sorted(weights.items()) if weight}
        self.terms = nn.ModuleDict({name: terms.get(name)(shape) for name in self.weights})
        self.streams: Sequence[torch.cuda.Stream] = ()
        """Where a GPU works beside the others, also on the way back: first on terms with networks of their own, then on
        terms whose ``concurrent_feedback`` has the feedback."""
        for name in weights:
            terms.get(name)  # a misspelt name is an error even at weight 0

    def _named_terms(self) -> list[tuple[str, Term]]:
        return list(self.terms.items())  # type: ignore[arg-type]

    @property
    def needs_target(self) -> bool:
        """Whether any term looks at target contexts."""
        return any(term.needs_target for _, term in self._named_terms())

    @property
    def needs_width(self) -> bool:
        """Whether any term needs the head's widths at target contexts."""
        return any(term.needs_width for _, term in self._named_terms())

    @property
    def taught(self) -> list[int]:
        """The places of terms that need the EMA encoder's predictions."""
        return [place for place, (_, term) in enumerate(self._named_terms()) if term.needs_teacher]

    @property
    def gated(self) -> list[str]:
        """The terms whose weights are gated: on the target, and R."""
        return [name for name, term in self._named_terms() if _is_gated(term)]

    def weights_over(self, steps: Sequence[int], *, run_steps: int, gate: float = 1.0) -> list[list[float]]:
        """Every term's weight at each of these gradient steps of a run, in the order of ``weights``.

        ``gate`` multiplies those of gated terms.
        """
        factors = [gate if _is_gated(term) else 1.0 for _, term in self._named_terms()]
        columns = []
        for weight, factor in zip(self.weights.values(), factors, strict=True):
            ends = [weight.at(step, run_steps) for step in (min(steps), max(steps))]
            # A weight never falls: where its ends agree, so does what is between them.
            column = ends[:1] * len(steps) if ends[0] == ends[1] else [weight.at(step, run_steps) for step in steps]
            columns.append([own * factor for own in column])
        return columns

    def weights_at(self, step: int) -> list[float]:
        """Every term's weight at one gradient step of a run, with the gate fully open."""
        return [weight for (weight,) in self.weights_over([step], run_steps=1)]

    def forward(
        self, batch: Batch, weights: torch.Tensor, measure: bool = False
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The loss with ``weights`` (one a term, as ``weights_at`` gives them), and every term's own value, detached.

        Terms that need the target are left out while there is none. With ``measure``, what terms can tell besides
        stands among the values.
        """
        values: dict[str, torch.Tensor] = {}
        weighed, places, as_they_are = [], [], []
        weights = weights.to(batch.predicted.dtype)
        for stream in self.streams:
            stream.wait_stream(torch.cuda.current_stream(stream.device))
        free = itertools.cycle(self.streams[1:])
        for place, (name, term) in enumerate(self._named_terms()):
            if term.needs_target and len(batch.target_predicted) == 0:
                continue
            concurrent = term.shape.feedback in term.concurrent_feedback
            where = next(iter(self.streams), None) if term.weighs_itself else next(free, None) if concurrent else None
            with torch.cuda.stream(where):
                value = values[name] = term(replace(batch, weight=weights[place]))
            if term.weighs_itself:
                as_they_are.append(value)
            else:
                weighed.append(value)
                places.append(place)
        for stream in self.streams:
            torch.cuda.current_stream(stream.device).wait_stream(stream)
        if not values:  # 0 all the same, and something to take the gradient of
            return batch.predicted.sum() * 0.0, {}
        parts = list(as_they_are)
        if len(weighed) == 1:
            parts.append(weights[places[0]] * weighed[0])
        elif weighed:
            first, last = places[0], places[-1] + 1
            own = weights[first:last] if last - first == len(places) else torch.stack([weights[one] for one in places])
            parts.append(own @ torch.stack(weighed))
        total = sum(parts[1:], start=parts[0])
        measured = {name: value.detach() for name, value in values.items()}
        for _, term in self._named_terms() if measure else ():
            measured.update(term.measured(batch))
        return total, measured

    def grow(self) -> None:
        """One more arm."""
        for _, term in self._named_terms():
            term.grow()


def _is_gated(term: Term) -> bool:
    return term.needs_target if term.gated is None else term.gated
