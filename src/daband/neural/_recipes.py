"""The named recipes, and how a user's ``recipe=`` becomes a ``Recipe``.

``paper`` is Algorithm 1 with the paper's settings, P on the action of the source round; ``paper-target-choice`` is the
other reading of P, on the arm that the policy would choose in the target. ``default`` is what works, ``default-rpd``
the same with R, P and D all on, so that leaving one out says something. ``small`` is the default for a CPU and a few
minutes: a narrower network, fewer steps. ``default`` and ``small`` follow the ``shift``, what may differ between the
domains: the target's terms are theirs only where its style differs. Given to Neural-LinUCB, a name means that recipe
without the target's terms. ``docs/results/protocol.md`` has the data on which the
defaults were chosen.

A recipe can also be written as a change of a named one, as JSON and TOML can hold it:
``{"base": "paper", "weights": {"adversarial": 5}, "learning": {"learning_rate": 1e-3}}``. Without ``base`` it changes
"default".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from torch import nn

from daband._image_layout import image_layout
from daband._shift import Shift, default_shift
from daband.errors import InvalidInput
from daband.neural.encoders._augmentation import Augmentation
from daband.neural.encoders._encoder import LatentSettings
from daband.neural.learning._settings import (
    CUSTOM,
    EncoderSettings,
    LearningSettings,
    Recipe,
    ReplaySettings,
    recipe_from,
)
from daband.neural.objectives._objective import Weight

_FOLLOW_SHIFT = ("default", "small")
_RAMP = 0.3125
"""The share of a run in which the target's terms grow: 6,000 of the 19,200 steps of 300 episodes."""
UNALIGNED_STEPS = 8
"""Gradient steps of an episode where nothing is aligned, unless the recipe is changed; a short run takes more."""


def resolve_recipe(
    recipe: str | Recipe | Mapping[str, Any] | None,
    *,
    context_shape: tuple[int, ...],
    source_terms_only: bool = False,
    shift: Shift | None = None,
    standardised: bool = False,
) -> Recipe:
    """The recipe that is meant: a name, a ``Recipe``, what ``Recipe.settings`` returned, or a change of a named one.

    A mapping with every group of a recipe is that recipe. Any other is a change (``Recipe.changed``) of the recipe that
    it names under ``base``, which is "default" unless given; so is None.

    ``default`` and ``small`` follow ``shift`` (``Recipe.for_shift``), by default that of the context's shape. What a
    mapping changes, terms among them, is changed after that. Other names mean all of their terms.
    ``standardised`` contexts are not normalised again.

    With ``source_terms_only`` a name, and the ``base`` of a change, mean that recipe without the target's terms. A
    recipe that is given in full is used as it is.
    """
    if isinstance(recipe, Recipe):
        full = recipe
    elif isinstance(recipe, Mapping) and _is_whole(recipe):
        full = recipe_from(recipe)
    elif recipe is None or isinstance(recipe, str | Mapping):
        changes = dict(recipe) if isinstance(recipe, Mapping) else {"base": "default" if recipe is None else recipe}
        name = str(changes.pop("base", "default"))
        base = recipe_for(name, context_shape=context_shape)
        base = base.source_alone() if source_terms_only else base
        if name in _FOLLOW_SHIFT:
            shift = default_shift(context_shape) if shift is None else shift
            named: object = changes.get("weights")
            keep = tuple(named) if isinstance(named, Mapping) else ()
            base = base.for_shift(shift, context_shape=context_shape, keep=keep)
            if not shift.aligns and base.encoder.name == "mlp" and base.learning.linear_weight > 0:
                base = _unaligned(base, standardised=standardised)
        full = base.changed(changes)
    else:
        raise InvalidInput(f"a recipe is a name, a Recipe or a mapping, got {recipe!r}")
    try:
        return recipe_from(json.loads(json.dumps(full.settings())))  # what is saved is what is used
    except TypeError as error:
        raise InvalidInput(
            f"a recipe holds names and numbers only, as its file does ({error}); pass a network of your own as encoder="
        ) from None


def changes_setting(recipe: str | Recipe | Mapping[str, Any] | None, group: str, name: str) -> bool:
    """Whether ``recipe`` is a change of a named one that gives this setting."""
    if not isinstance(recipe, Mapping) or _is_whole(recipe):
        return False
    changed = recipe.get(group)
    return isinstance(changed, Mapping) and name in changed


def _is_whole(recipe: Mapping[str, Any]) -> bool:
    return set(recipe) >= {group.name for group in fields(Recipe)}


def with_encoder(recipe: Recipe, encoder: str | EncoderSettings | nn.Module | None) -> Recipe:
    """The recipe with this network: a registered name, settings, or a custom module, of which it keeps the name."""
    if encoder is None:
        return recipe
    if isinstance(encoder, EncoderSettings):
        return replace(recipe, encoder=encoder)
    if isinstance(encoder, nn.Module):
        options: dict[str, Any] = {"module": type(encoder).__name__}
        return replace(recipe, encoder=replace(recipe.encoder, name=CUSTOM, options=options))
    if not isinstance(encoder, str):
        raise InvalidInput(f"encoder must be a name, EncoderSettings or a torch.nn.Module, got {encoder!r}")
    options = recipe.encoder.options if encoder == recipe.encoder.name else {}
    return replace(recipe, encoder=replace(recipe.encoder, name=encoder, options=options))


def recipe_names() -> list[str]:
    """The names that ``recipe_for`` knows."""
    return ["default", "default-rpd", "paper", "paper-target-choice", "small"]


def recipe_for(name: str, *, context_shape: tuple[int, ...]) -> Recipe:
    """The named recipe for contexts of this shape: one per encoder family and none per data set.

    >>> sorted(daband.recipe_for("default", context_shape=(8,)).weights)
    ['adversarial', 'source_cross_entropy']
    """
    image = image_layout(context_shape) is not None
    if name == "paper":
        return _paper(image)
    if name == "paper-target-choice":
        return _paper(image, predicted_reward="predicted_reward_target_choice")
    if name == "small":
        return _small_image() if image else _small_vector()
    default = _default_image() if image else _default_vector()
    if name == "default":
        return default
    if name == "default-rpd":
        return default.with_weights(regression_error=0.5, predicted_reward=1.0)
    raise InvalidInput(f"unknown recipe {name!r} (known: {', '.join(recipe_names())})")


def _default_image() -> Recipe:
    return Recipe(
        weights={
            "source_cross_entropy": Weight(1.0),
            "adversarial": Weight(0.3, shape="sigmoid", steps=_RAMP),
            "target_entropy": Weight(0.1),
            "target_diversity": Weight(0.1),
            "pseudo_labels": Weight(0.5, shape="step", start=_RAMP),
        },
        encoder=EncoderSettings(name="conv"),
        learning=LearningSettings(augmentation=Augmentation(shift=2, contrast=0.4), gate_exponent=8.0),
    )


def _default_vector() -> Recipe:
    return Recipe(
        weights={"source_cross_entropy": Weight(1.0), "adversarial": Weight(0.3, shape="sigmoid", steps=_RAMP / 2)},
        encoder=EncoderSettings(name="mlp"),
        learning=LearningSettings(steps=32, gate_exponent=1.0, linear_weight=0.5, run_steps=9_600),
    )


def _unaligned(recipe: Recipe, *, standardised: bool) -> Recipe:
    """The same for vectors of which a number means the same in every domain: no batch norm in hidden layers.

    And fewer steps: with nothing to align, 32 an episode overfit a table (development half, 44 pairs: with 8 the mean
    over the best simple method is higher by .002, on amazon by .014, and a run takes a third of the time).
    """
    options = {**recipe.encoder.options, "normalise_input": not standardised, "normalise_hidden": False}
    learning = replace(recipe.learning, steps=min(recipe.learning.steps, UNALIGNED_STEPS))
    return replace(recipe, encoder=replace(recipe.encoder, options=options), learning=learning)


def _small_image() -> Recipe:
    default = _default_image()
    return replace(
        default.with_weights(
            adversarial=Weight(1.0, shape="sigmoid", steps=_RAMP), pseudo_labels=Weight(0.5, shape="step", start=0.4375)
        ),
        encoder=EncoderSettings(name="conv", options={"channels": (16, 24)}, latent=LatentSettings(hidden=64)),
        learning=replace(
            default.learning, learning_rate=2e-3, steps=16, batch=32, ema_decay=0.98, gate_exponent=4.0, run_steps=1_600
        ),
    )


def _small_vector() -> Recipe:
    default = _default_vector()
    return replace(default, learning=replace(default.learning, steps=16, batch=32, ema_decay=0.98, run_steps=4_800))


def _paper(image: bool, *, predicted_reward: str = "predicted_reward") -> Recipe:
    """Algorithm 1: the last H rounds, stale A and b, unit-norm theta, weights 1, 2, 1, lambda.

    The paper normalises images, which is read as [-1, 1] here, and sums L_RS over all arms, which is read as those that
    bandit feedback reveals.
    """
    return Recipe(
        weights={
            "source_squared": Weight(1.0),
            "regression_error": Weight(2.0),
            predicted_reward: Weight(1.0),
            "adversarial": Weight(1.0),
        },
        encoder=EncoderSettings(
            name="conv" if image else "mlp",
            options={"channels": (32, 48), "normalise": False, "pixels": "symmetric"}
            if image
            else {"widths": (256,), "normalise_input": False, "normalise_hidden": False},
            latent=LatentSettings(dimension=64, hidden=128, alignment="latent"),
            initialisation="gaussian",
        ),
        learning=LearningSettings(learning_rate=1e-5, ema_decay=0.0),
        replay=ReplaySettings(sampling="last", refit=False, unit_theta=True),
        alpha=0.05,
    )
