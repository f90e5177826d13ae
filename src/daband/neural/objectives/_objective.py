"""Define the objective (the loss): a sum of terms, each with a scheduled weight.

``Weight`` is the weight of one term with its schedule. ``Objective`` builds the terms and adds them
up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from daband.errors import InvalidInput
from daband.neural.objectives._term import Batch, Term, TermSettings, terms


@dataclass(frozen=True)
class Weight:
    """The weight of a term, with its schedule over the gradient steps of a run.

    Before ``start`` the weight is 0. Then it grows over ``ramp`` steps to ``value`` by the schedule
    of domain-adversarial training: at a fraction p of the ramp it is ``value * (2 / (1 + exp(-10
    p)) - 1)``. With a ``ramp`` of 0 it has its full value at once. A ``start`` or ``ramp`` below 1
    is a fraction of the run, so that a short run ends with the same weights as a long run; from 1
    on it is a number of steps.

    A ``value`` of 0 removes the term: it is not computed, and draws no random number.
    """

    #: The final weight.
    value: float = 0.0
    #: The step or the fraction of the run at which the weight starts to grow.
    start: float = 0
    #: The number of steps or the fraction of the run over which the weight grows.
    ramp: float = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.value) and self.value >= 0):
            raise InvalidInput(f"value of a weight must be a finite number >= 0, got {self.value}")
        if self.start < 0 or self.ramp < 0:
            raise InvalidInput(
                f"start and ramp of a weight must be >= 0, got {self.start} and {self.ramp}"
            )

    def __bool__(self) -> bool:
        return self.value > 0

    def value_at(self, step: int, run_steps: int) -> float:
        """Return the weight at gradient step ``step`` of a run of ``run_steps`` steps."""
        start_step = _to_steps(self.start, run_steps)
        ramp_steps = _to_steps(self.ramp, run_steps)
        if step < start_step:
            return 0.0
        progress = min(1.0, (step - start_step) / ramp_steps) if ramp_steps else math.inf
        return self.value * (2 / (1 + math.exp(-10 * progress)) - 1)


def _to_steps(duration: float, run_steps: int) -> float:
    """Return a duration as a number of steps; a duration below 1 is a fraction of the run."""
    return duration * run_steps if duration < 1 else duration


class Objective(nn.Module):
    """The weighted sum of registered terms.

    Terms of weight 0 are not built, so they cost nothing and draw no random number.

    Args:
        weights: the weight of each term, by the term's registered name.
        settings: the sizes and settings from which the terms are built.
    """

    def __init__(self, *, weights: Mapping[str, Weight], settings: TermSettings) -> None:
        super().__init__()
        self.weights = {name: weight for name, weight in sorted(weights.items()) if weight}
        self.terms = nn.ModuleDict({name: terms.get(name)(settings) for name in self.weights})
        #: The CUDA streams on which terms are computed concurrently; empty on a CPU. The first
        #: stream is for terms with ``applies_weight``, the others are for terms whose
        #: ``concurrent_feedback`` contains the policy's feedback.
        self.streams: Sequence[torch.cuda.Stream] = ()
        for name in weights:
            terms.get(name)  # a misspelt name is an error even at weight 0

    def _list_terms(self) -> list[tuple[str, Term]]:
        """Return the terms with their names."""
        return list(self.terms.items())  # type: ignore[arg-type]

    @property
    def needs_target(self) -> bool:
        """True if any term uses target contexts."""
        return any(term.needs_target for _, term in self._list_terms())

    @property
    def needs_bonus(self) -> bool:
        """True if any term needs the head's bonuses at target contexts."""
        return any(term.needs_bonus for _, term in self._list_terms())

    @property
    def teacher_term_indices(self) -> list[int]:
        """The indices of the terms that use predictions of the teacher, which is the EMA
        encoder.
        """
        return [index for index, (_, term) in enumerate(self._list_terms()) if term.needs_teacher]

    @property
    def gated_term_names(self) -> list[str]:
        """The names of the terms whose weights the skill gate multiplies: target terms, and
        "regression_error".
        """
        return [name for name, term in self._list_terms() if _is_gated(term)]

    def compute_weights(
        self, step_numbers: Sequence[int], *, run_steps: int, gate: float = 1.0
    ) -> list[list[float]]:
        """Return the weights of every term at gradient steps of a run, a list (terms, steps).

        Args:
            step_numbers: the numbers of the steps, from 0.
            run_steps: the number of steps of the run.
            gate: the factor of the gated weights, from the ``SkillGate``.
        """
        weights_by_term = []
        for weight, (_, term) in zip(self.weights.values(), self._list_terms(), strict=True):
            factor = gate if _is_gated(term) else 1.0
            first_value, last_value = (
                weight.value_at(step, run_steps) for step in (min(step_numbers), max(step_numbers))
            )
            # A weight never decreases: if its values at the first and last step agree, it is
            # constant between them.
            if first_value == last_value:
                weights_by_term.append([first_value * factor] * len(step_numbers))
            else:
                weights_by_term.append(
                    [weight.value_at(step, run_steps) * factor for step in step_numbers]
                )
        return weights_by_term

    def forward(
        self, batch: Batch, weights: Tensor, measure: bool = False
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, and the value of every term by name, without a gradient.

        ``weights`` (terms,) are the weights of the terms. Terms that need the target are ignored if
        there are no target contexts. With ``measure``, the result also has the terms' measurements.
        """
        values_by_name: dict[str, Tensor] = {}
        summands = []
        unweighted_values = []
        unweighted_indices = []
        weights = weights.to(batch.predictions.dtype)
        for stream in self.streams:
            stream.wait_stream(torch.cuda.current_stream(stream.device))
        concurrent_streams = itertools.cycle(self.streams[1:])
        for index, (name, term) in enumerate(self._list_terms()):
            if term.needs_target and len(batch.target_predictions) == 0:
                continue
            term_stream = next(iter(self.streams), None) if term.applies_weight else None
            if not term.applies_weight and term.settings.feedback in term.concurrent_feedback:
                term_stream = next(concurrent_streams, None)
            with torch.cuda.stream(term_stream):
                value = values_by_name[name] = term(replace(batch, weight=weights[index]))
            if term.applies_weight:
                summands.append(value)
            else:
                unweighted_values.append(value)
                unweighted_indices.append(index)
        for stream in self.streams:
            torch.cuda.current_stream(stream.device).wait_stream(stream)
        if not values_by_name:  # a 0 that has a gradient
            return batch.predictions.sum() * 0.0, {}
        if len(unweighted_values) == 1:
            summands.append(weights[unweighted_indices[0]] * unweighted_values[0])
        elif unweighted_values:
            start = unweighted_indices[0]
            stop = unweighted_indices[-1] + 1
            if stop - start == len(unweighted_indices):
                term_weights = weights[start:stop]
            else:
                term_weights = torch.stack([weights[index] for index in unweighted_indices])
            summands.append(term_weights @ torch.stack(unweighted_values))
        loss = sum(summands[1:], start=summands[0])
        measurements = {name: value.detach() for name, value in values_by_name.items()}
        for _, term in self._list_terms() if measure else ():
            measurements.update(term.measure(batch))
        return loss, measurements


def _is_gated(term: Term) -> bool:
    """Return True if the skill gate scales the weight of a term, by default if the term needs the
    target.
    """
    return term.needs_target if term.is_gated is None else term.is_gated
