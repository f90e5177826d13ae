"""Small batches for the tests of terms."""

import torch

from daband.neural import Batch
from daband.neural._term import TermSettings

B = 6
T = 5
K = 4
W = 7


def make_batch(seed=0, dtype=torch.float64, **replaced):
    random = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)

    values = {
        "predictions": draw(B, K) / 3,
        "arms": torch.tensor([0, 1, 2, 3, 1, 0]),
        "rewards": torch.tensor([1, 0, 1, 0, 1, 0], dtype=dtype),
        "aligned": draw(B, W),
        "target_predictions": draw(T, K) / 3,
        "target_aligned": draw(T, W),
        "teacher_predictions": draw(T, K),
        "arm_frequencies": torch.full((K,), 1 / K, dtype=dtype),
        "weight": torch.ones((), dtype=dtype),
    }
    return Batch(**{**values, **replaced})


def term_settings(**settings):
    return TermSettings(**{"n_arms": K, "n_aligned_features": W, "feedback": "one_hot", **settings})
