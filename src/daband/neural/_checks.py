"""Check terms of the objective.

    from daband.checks import check_term
    check_term(MyTerm)  # or its registered name

A check raises an ``AssertionError`` that describes the problem. daband's tests run all checks on all of its terms.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn
from torch.func import functional_call

from daband._registry import Checks
from daband.neural.objectives._term import Batch, Term, TermShape, terms

#: The checks of a term, in the order in which they run.
TERM_CHECKS = Checks()

#: The sizes of the batch on which terms are checked: rounds, target contexts, arms, aligned features.
_ROUNDS, _TARGETS, _ARMS, _ALIGNED_WIDTH = 7, 6, 4, 5
#: The sizes from which terms are built.
_SHAPE = TermShape(n_arms=_ARMS, aligned_width=_ALIGNED_WIDTH, feedback="one_hot")
#: The fields of a batch that depend on the encoder.
_WITH_GRADIENT = ("predicted", "aligned", "target_predicted", "target_aligned")


def random_batch(*, arms: int = _ARMS) -> Batch:
    """Return a random batch. All calls return the same numbers."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    return Batch(
        predicted=draw(_ROUNDS, arms),
        arm=torch.arange(_ROUNDS) % arms,
        reward=(torch.arange(_ROUNDS) % 2).double(),
        aligned=draw(_ROUNDS, _ALIGNED_WIDTH),
        target_predicted=draw(_TARGETS, arms),
        target_bonus=0.1 * draw(_TARGETS, arms),
        target_aligned=draw(_TARGETS, _ALIGNED_WIDTH) + 0.5,
        target_teacher=3 * draw(_TARGETS, arms),
        weight=torch.ones((), dtype=torch.float64),
    )


def _build_term(term_class: type[Term], seed: int = 0) -> Term:
    """Return a term of this class in double precision."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return term_class(_SHAPE).double()


def _compute_gradients(term: Term, batch: Batch) -> dict[str, torch.Tensor | None]:
    """Return the gradient of a term's value with respect to each input, by the name of the input."""
    leaves = {name: getattr(batch, name).clone().requires_grad_() for name in _WITH_GRADIENT}
    value = term(replace(batch, **leaves))
    grads = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return dict(zip(leaves, grads, strict=True))


@TERM_CHECKS.add
def check_value_is_a_finite_scalar(term_class: type[Term]) -> None:
    """Check that the value is one finite number, and that the same batch gives the same value."""
    term = _build_term(term_class)
    first, second = term(random_batch()), term(random_batch())
    assert first.shape == (), f"the value has shape {tuple(first.shape)}"
    assert torch.isfinite(first), f"the value is {first.item()}"
    assert torch.equal(first, second), "the same batch gives another value"


@TERM_CHECKS.add
def check_encoder_gets_gradient(term_class: type[Term]) -> None:
    """Check that some input of the encoder gets a finite gradient that is not zero."""
    grads = [grad for grad in _compute_gradients(_build_term(term_class), random_batch()).values() if grad is not None]
    assert all(torch.isfinite(grad).all() for grad in grads), "a gradient is not finite"
    assert any((grad != 0).any() for grad in grads), "no gradient reaches the encoder"


@TERM_CHECKS.add
def check_gradient_is_the_derivative(term_class: type[Term]) -> None:
    """Check that the gradient agrees with finite differences, except for terms that apply their weight themselves."""
    if term_class.applies_weight:
        return
    term, batch = _build_term(term_class), random_batch()
    grads = _compute_gradients(term, batch)
    step = 1e-6
    for name, grad in grads.items():
        if grad is None:
            continue
        values = getattr(batch, name)
        direction = torch.cos(torch.arange(values.numel(), dtype=torch.float64)).view_as(values) + 0.3
        ahead, behind = (term(replace(batch, **{name: values + sign * step * direction})) for sign in (1, -1))
        slope = float((ahead - behind) / (2 * step))
        expected = float((grad * direction).sum())
        assert abs(slope - expected) <= 1e-5 * (1 + abs(slope)), f"{name}: slope {slope:g}, gradient {expected:g}"


@TERM_CHECKS.add
def check_works_without_target(term_class: type[Term]) -> None:
    """Check that a term that does not need the target works without one."""
    if term_class.needs_target:
        return
    empty = {name: getattr(random_batch(), name)[:0] for name in ("target_predicted", "target_bonus", "target_teacher")}
    value = _build_term(term_class)(replace(random_batch(), **empty, target_aligned=random_batch().target_aligned[:0]))
    assert torch.isfinite(value), f"without target contexts the value is {value.item()}"


@TERM_CHECKS.add
def check_arms_can_be_added(term_class: type[Term]) -> None:
    """Check that a term built for K arms accepts K + 1."""
    assert torch.isfinite(_build_term(term_class)(random_batch(arms=_ARMS + 1)))


@TERM_CHECKS.add
def check_rows_need_not_match(term_class: type[Term]) -> None:
    """Check that a term accepts rewarded target rounds after or instead of source rounds, and a context per arm."""
    batch, term = random_batch(), _build_term(term_class)
    repeated_rounds = {name: torch.cat([getattr(batch, name)] * 2) for name in ("predicted", "arm", "reward")}
    names = ("aligned", "target_aligned")
    a_context_per_arm = {name: getattr(batch, name).repeat_interleave(_ARMS, 0) for name in names}
    for case, changes in (
        ("with rounds of the target", repeated_rounds),
        ("with a context per arm", a_context_per_arm),
        ("with both", {**repeated_rounds, **a_context_per_arm}),
        ("without a round of the source", {"aligned": batch.aligned[:0]}),
    ):
        changed = replace(batch, **changes)
        for name, value in {"value": term(changed), **term.measure(changed)}.items():
            assert torch.isfinite(value), f"{case} {name} is {value.item()}"


@TERM_CHECKS.add
def check_runs_can_be_mapped(term_class: type[Term]) -> None:
    """Check that runs mapped by ``torch.vmap`` have the values, measurements and gradients of single runs.

    A term may hold parameters and buffers only, and must not branch on values (``.item()``, ``if``).
    """
    runs = [_TermWithMeasurements(_build_term(term_class, seed)) for seed in (0, 1)]
    weights = [{**dict(run.named_parameters()), **dict(run.named_buffers())} for run in runs]
    first = random_batch()
    second = replace(random_batch(), predicted=first.predicted.flip(0), aligned=first.aligned * 1.5)
    batches = [vars(first), vars(second)]

    def measure(run_parameters: dict[str, torch.Tensor], fields: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return functional_call(runs[0], run_parameters, (Batch(**fields),))

    def gradients(value: torch.Tensor, fields: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        inputs = [fields[name] for name in _WITH_GRADIENT]
        return torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)

    names = [name for name, tensor in batches[0].items() if tensor is not None]
    stacks = {name: torch.stack([fields[name] for fields in batches]) for name in names}
    for fields in (*batches, stacks):
        for name in _WITH_GRADIENT:
            fields[name].requires_grad_()
    stacked_weights = {name: torch.stack([tensors[name] for tensors in weights]) for name in weights[0]}
    stacked = torch.vmap(measure)(stacked_weights, stacks)
    stacked_gradients = gradients(stacked["value"].sum(), stacks)
    for run_index, (run, fields) in enumerate(zip(runs, batches, strict=True)):
        single = run(Batch(**fields))
        for name, value in single.items():
            assert torch.allclose(stacked[name][run_index], value), f"run {run_index} has another {name} than alone"
        single_gradients = gradients(single["value"], fields)
        for name, gradient, stack in zip(_WITH_GRADIENT, single_gradients, stacked_gradients, strict=True):
            assert torch.allclose(stack[run_index], gradient), f"run {run_index} alone has another gradient of {name}"


class _TermWithMeasurements(nn.Module):
    """A term that returns its value and all its measurements in one call."""

    def __init__(self, term: Term) -> None:
        super().__init__()
        self.term = term

    def forward(self, batch: Batch) -> dict[str, torch.Tensor]:
        return {"value": self.term(batch), **self.term.measure(batch)}


def check_term(term: type[Term] | str) -> None:
    """Run every check on a term, given by its class or its registered name.

    The first failure raises an error, mostly ``AssertionError``, with its rule as a note.
    """
    TERM_CHECKS.run(terms.get(term) if isinstance(term, str) else term)
