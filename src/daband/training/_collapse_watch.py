"""Detect the collapse of adversarial training from the records of its episodes, without target
labels.

A collapsed network predicts the same for all target contexts, or cannot learn to align the domains
any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


class CollapseWarning(UserWarning):
    """Warns that training has collapsed, as its records show without target labels."""


@dataclass(frozen=True)
class _Sign:
    """A sign of collapse: a value beyond a limit in a field of an episode's record."""

    #: Name of the sign, the first words of the warning.
    name: str
    #: Name of the field in the record.
    field: str
    #: Text of the warning, a format string with the fields ``value`` and ``n_episodes``.
    template: str
    #: The sign is present at this value or above.
    at_least: float | None = None
    #: The sign is present at this value or below.
    at_most: float | None = None

    def is_present(self, record: Mapping[str, float]) -> bool:
        """Return True if an episode shows the sign."""
        value = record.get(self.field)
        if value is None:
            return False
        return (self.at_least is not None and value >= self.at_least) or (
            self.at_most is not None and value <= self.at_most
        )


#: The signs that are watched for.
_COLLAPSE_SIGNS = (
    _Sign(
        "one arm for the target",
        "target_top_share",
        at_least=0.95,
        template=(
            "nearly all target contexts go to one arm ({value:.0%} for {n_episodes} episodes)."
            " Lower the weight of predicted_reward, raise target_diversity, or start the terms on"
            " the target later"
        ),
    ),
    _Sign(
        "features nearly equal",
        "latent_spread",
        at_most=0.004,
        template=(
            "different contexts have nearly the same features (their total variance is {value:.3g}"
            " of at most 1 for {n_episodes} episodes). Lower the weight of the divergence or the"
            " learning rate"
        ),
    ),
    _Sign(
        "discriminator perfect",
        "discriminator_accuracy",
        at_least=0.995,
        template=(
            "the discriminator tells the domains apart without error ({value:.1%} for {n_episodes}"
            " episodes), so the encoder learns nothing from it. Raise the adversarial weight, or"
            " align the encoder's wider features (the recipe's setting dense.aligned ="
            " 'penultimate')"
        ),
    ),
)


class CollapseWatch:
    """Reports each sign of collapse once.

    Args:
        patience: the number of consecutive episodes with a sign after which it is reported.
    """

    def __init__(self, *, patience: int = 10) -> None:
        self.patience = patience
        #: The number of latest consecutive episodes with a sign, by the name of the sign.
        self._streak_lengths = dict.fromkeys((sign.name for sign in _COLLAPSE_SIGNS), 0)
        self._reported_names: set[str] = set()

    def observe(self, record: Mapping[str, float]) -> list[str]:
        """Return the warnings that are due after an episode with this record; usually there are
        none.
        """
        messages = []
        for sign in _COLLAPSE_SIGNS:
            self._streak_lengths[sign.name] = (
                self._streak_lengths[sign.name] + 1 if sign.is_present(record) else 0
            )
            if (
                self._streak_lengths[sign.name] >= self.patience
                and sign.name not in self._reported_names
            ):
                self._reported_names.add(sign.name)
                message = sign.template.format(
                    value=record[sign.field], n_episodes=self._streak_lengths[sign.name]
                )
                messages.append(f"{sign.name}: {message}")
        return messages
