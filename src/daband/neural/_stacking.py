"""Take the gradient steps of several neural policies of one shape together, in about half the time on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from daband.neural._neural_linucb import NeuralLinUCB
from daband.neural.learning._step_runners import take_steps
from daband.policies._policy import Policy


def can_stack(members: Sequence[Policy]) -> bool:
    """Return True if ``adapt_stacked`` can take the steps of these policies: neural, of one shape and recipe.

    Seeds may differ, and so may the values of weights if the terms are the same. Each policy may be given only once.
    """
    learners = [policy.learner for policy in members if isinstance(policy, NeuralLinUCB)]
    if not learners or len({id(learner) for learner in learners}) < len(members):
        return False
    return learners[0].stackable and len({learner.shape_key for learner in learners}) == 1


def adapt_stacked(members: Sequence[Policy]) -> list[dict[str, float] | Exception]:
    """Call ``adapt`` for several policies that ``can_stack``, with common gradient steps.

    If a policy fails, its result is the exception, and the others are not affected.
    """
    results: list[dict[str, float] | Exception] = [{} for _ in members]
    ready: dict[tuple[int, object], list[tuple[int, NeuralLinUCB]]] = {}
    with ExitStack() as held:
        for policy in sorted(members, key=id):  # the same order in every thread that stacks them, against deadlocks
            held.enter_context(policy._locks.write)
        for index, policy in enumerate(members):
            assert isinstance(policy, NeuralLinUCB)
            # Policies take different steps once they have target contexts or target rewards.
            steps, kinds = policy.before_steps(None), tuple(part.kind for part in policy.buffers.parts().values())
            if steps:
                ready.setdefault((steps, kinds), []).append((index, policy))
        for (steps, _), group in ready.items():
            together = [policy for _, policy in group]
            measured = take_steps([one.learner for one in together], steps, [one.buffers for one in together])
            for (index, policy), own in zip(group, measured, strict=True):
                try:
                    results[index] = policy.after_steps(own)
                except Exception as error:
                    results[index] = error
    return results
