"""Evaluation: zero-shot regret and accuracy of a fixed policy."""

from daband.evaluation.zero_shot import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
