"""Define the objective (the loss): a sum of terms, each with a scheduled weight."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from daband.errors import InvalidInput
from daband.neural.objectives._term import Batch, Term, TermShape, terms


@dataclass(frozen=True)
class Weight:
    """The weight of a term, with its schedule over the gradient steps of a run.

    Before ``start`` the weight is 0. Then it grows over ``ramp`` steps from 0 to ``value`` by the schedule of
    domain-adversarial training, ``2 / (1 + exp(-10 p)) - 1``; with a ``ramp`` of 0 it has its value at once. ``start``
    and ``ramp`` below 1 are fractions of the run, so that a short run ends with the same weights as a long one. Values
    from 1 on are numbers of steps.

    A ``value`` of 0 removes the term: it is not computed, and draws no random number.
    """

    #: The final weight.
    value: float = 0.0
    #: The step or the fraction of the run at which the weight starts to grow.
    start: float = 0
    #: The number of steps or the fraction of the run in which it grows.
    ramp: float = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise InvalidInput(f"value of a weight must be a finite number >= 0, got {self.value}")
        if self.start < 0 or self.ramp < 0:
            raise InvalidInput(f"start and ramp of a weight must be >= 0, got {self.start} and {self.ramp}")

    def __bool__(self) -> bool:
        return self.value > 0

    def full_at(self, run_steps: int) -> float:
        """Return the gradient step, in a run of ``run_steps``, from which the weight has its full value."""
        return _to_steps(self.start, run_steps) + _to_steps(self.ramp, run_steps)

    def at(self, step: int, run_steps: int) -> float:
        """Return the weight at gradient step ``step`` of a run of ``run_steps``."""
        start, ramp = _to_steps(self.start, run_steps), _to_steps(self.ramp, run_steps)
        if step < start:
            return 0.0
        progress = min(1.0, (step - start) / ramp) if ramp else math.inf
        return self.value * (2 / (1 + math.exp(-10 * progress)) - 1)


def _to_steps(number: float, run_steps: int) -> float:
    """Return a number of steps; numbers below 1 are fractions of the run."""
    return number * run_steps if number < 1 else number


class Objective(nn.Module):
    """The weighted sum of registered terms.

    Terms of weight 0 are not built, so they cost nothing and draw no random number.
    """

    def __init__(self, *, weights: Mapping[str, Weight], shape: TermShape) -> None:
        super().__init__()
        self.weights = {name: weight for name, weight in sorted(weights.items()) if weight}
        self.terms = nn.ModuleDict({name: terms.get(name)(shape) for name in self.weights})
        #: The streams on which a GPU computes terms concurrently: the first for terms with networks, the others for
        #: terms whose ``concurrent_feedback`` includes the feedback.
        self.streams: Sequence[torch.cuda.Stream] = ()
        for name in weights:
            terms.get(name)  # a misspelt name is an error even at weight 0

    def _named_terms(self) -> list[tuple[str, Term]]:
        """Return the terms with their names."""
        return list(self.terms.items())  # type: ignore[arg-type]

    @property
    def needs_target(self) -> bool:
        """True if any term uses target contexts."""
        return any(term.needs_target for _, term in self._named_terms())

    @property
    def needs_bonus(self) -> bool:
        """True if any term needs the head's bonuses at target contexts."""
        return any(term.needs_bonus for _, term in self._named_terms())

    @property
    def teacher_terms(self) -> list[int]:
        """The indices of terms that need the EMA encoder's predictions."""
        return [index for index, (_, term) in enumerate(self._named_terms()) if term.needs_teacher]

    @property
    def gated(self) -> list[str]:
        """The names of terms whose weights are gated: terms on the target, and R."""
        return [name for name, term in self._named_terms() if _is_gated(term)]

    def weights_over(self, steps: Sequence[int], *, run_steps: int, gate: float = 1.0) -> list[list[float]]:
        """Return the weight of every term at these gradient steps of a run; ``gate`` multiplies the gated weights."""
        columns = []
        for weight, (_, term) in zip(self.weights.values(), self._named_terms(), strict=True):
            factor = gate if _is_gated(term) else 1.0
            ends = [weight.at(step, run_steps) for step in (min(steps), max(steps))]
            # A weight never decreases: if its first and last values agree, it is constant between them.
            column = ends[:1] * len(steps) if ends[0] == ends[1] else [weight.at(step, run_steps) for step in steps]
            columns.append([value * factor for value in column])
        return columns

    def forward(
        self, batch: Batch, weights: torch.Tensor, measure: bool = False
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss with ``weights`` (one per term), and the value of every term, detached.

        Terms that need the target are ignored if there are no target contexts. With ``measure``, the values include the
        terms' measurements.
        """
        values: dict[str, torch.Tensor] = {}
        plain_values, indices, weighted_values = [], [], []
        weights = weights.to(batch.predicted.dtype)
        for stream in self.streams:
            stream.wait_stream(torch.cuda.current_stream(stream.device))
        free_streams = itertools.cycle(self.streams[1:])
        for index, (name, term) in enumerate(self._named_terms()):
            if term.needs_target and len(batch.target_predicted) == 0:
                continue
            term_stream = next(iter(self.streams), None) if term.applies_weight else None
            if not term.applies_weight and term.shape.feedback in term.concurrent_feedback:
                term_stream = next(free_streams, None)
            with torch.cuda.stream(term_stream):
                value = values[name] = term(replace(batch, weight=weights[index]))
            if term.applies_weight:
                weighted_values.append(value)
            else:
                plain_values.append(value)
                indices.append(index)
        for stream in self.streams:
            torch.cuda.current_stream(stream.device).wait_stream(stream)
        if not values:  # a 0 that has a gradient
            return batch.predicted.sum() * 0.0, {}
        parts = list(weighted_values)
        if len(plain_values) == 1:
            parts.append(weights[indices[0]] * plain_values[0])
        elif plain_values:
            first, last = indices[0], indices[-1] + 1
            plain_weights = (
                weights[first:last] if last - first == len(indices) else torch.stack([weights[i] for i in indices])
            )
            parts.append(plain_weights @ torch.stack(plain_values))
        total = sum(parts[1:], start=parts[0])
        measured = {name: value.detach() for name, value in values.items()}
        for _, term in self._named_terms() if measure else ():
            measured.update(term.measured(batch))
        return total, measured


def _is_gated(term: Term) -> bool:
    """Return True if the weight of a term is gated."""
    return term.needs_target if term.gated is None else term.gated
