"""Gradient steps of several policies, stacked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from daband.learning.stepper import take_steps
from daband.policies.contract import Policy
from daband.policies.neural_linucb import NeuralLinUCB

__all__ = ["adapt_stacked", "can_stack"]


def can_stack(policies: Sequence[Policy]) -> bool:
    """Whether ``adapt_stacked`` can take the steps of these policies: neural ones of one shape and recipe.

    Seeds may differ, and the values of weights as long as the same terms are there. No policy may be there twice.
    """
    learners = [policy.learner for policy in policies if isinstance(policy, NeuralLinUCB)]
    if not learners or len({id(learner) for learner in learners}) < len(policies):
        return False
    return learners[0].stackable and len({learner.shape_key for learner in learners}) == 1


def adapt_stacked(policies: Sequence[Policy]) -> list[dict[str, float] | Exception]:
    """What ``adapt`` does, for several policies that ``can_stack``.

    On a GPU five of them took about half the time that they take one after the other. Where one of them fails, its
    place has the exception, and the others are as they would be without it.
    """
    with ExitStack() as locks:
        for policy in sorted(policies, key=id):  # in one order, whoever else stacks them
            locks.enter_context(policy._write_lock)
        return _adapt_stacked(policies)


def _adapt_stacked(policies: Sequence[Policy]) -> list[dict[str, float] | Exception]:
    results: dict[int, dict[str, float] | Exception] = {}
    ready: dict[object, list[tuple[int, NeuralLinUCB]]] = {}
    steps = 0
    for index, policy in enumerate(policies):
        assert isinstance(policy, NeuralLinUCB)
        due = policy.before_steps(None)
        if due:
            steps = due
            # One that has seen the target, or was paid there, takes other steps than one that has not.
            alike = tuple(buffer.kind for buffer in policy.buffers.parts().values())
            ready.setdefault(alike, []).append((index, policy))
        else:
            results[index] = {}
    for some in ready.values():
        learners, buffers = [policy.learner for _, policy in some], [policy.buffers for _, policy in some]
        found = take_steps(learners, steps, buffers)
        for (index, policy), measured in zip(some, found, strict=True):
            try:
                results[index] = policy.after_steps(measured)
            except Exception as error:
                results[index] = error
    return [results[index] for index in range(len(policies))]
