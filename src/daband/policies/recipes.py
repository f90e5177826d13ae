"""Recipes: every setting of a neural policy in frozen groups, and the named ones.

``paper`` is Algorithm 1 with the paper's settings. ``default`` is what works, ``default-rpd`` the same with R, P and D
all on, so that leaving one out says something. ``small`` is the default for a CPU and a few minutes: a narrower
network, fewer steps, shorter ramps. ``nlinucb``, ``small-nlinucb`` and ``paper-nlinucb`` are these with the source
regret alone. How the defaults were found, and what was looked at for that, stands in
``docs/results/recipe-research.md``.

A recipe can also be said as a change of a named one, as JSON and TOML can hold it:
``{"base": "paper", "weights": {"adversarial": 5}, "learning": {"learning_rate": 1e-3}}``. Without ``base`` a policy
changes its own default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from daband.encoders import LatentSettings
from daband.encoders.augmentation import Augmentation
from daband.errors import InvalidInput
from daband.learning.settings import EncoderSettings, Learning, Memory, Recipe, recipe_from
from daband.objectives import Weight

__all__ = ["context_family", "recipe_for", "recipe_names", "resolve_recipe"]


def resolve_recipe(
    recipe: str | Recipe | Mapping[str, Any], *, context_shape: tuple[int, ...], default: str | None = None
) -> Recipe:
    """The recipe that is meant: by name, as a ``Recipe``, as what ``settings()`` gave, or as a change of a named one.

    A mapping with ``base`` is the recipe of that name with everything else in the mapping changed (``changed``). One
    that has only some of a recipe's groups changes the recipe called ``default``, the policy's own.
    """
    if isinstance(recipe, str):
        recipe = recipe_for(recipe, context_shape=context_shape)
    elif isinstance(recipe, Mapping):
        changes = dict(recipe)
        base = changes.pop("base", None)
        if base is None and default is not None and any(group.name not in recipe for group in fields(Recipe)):
            base = default
        if base is None:
            return recipe_from(recipe)
        recipe = recipe_for(str(base), context_shape=context_shape).changed(changes)
    elif not isinstance(recipe, Recipe):
        raise InvalidInput(f"a recipe is a name, a Recipe or a mapping, got {recipe!r}")
    try:
        return recipe_from(json.loads(json.dumps(recipe.settings())))  # what is saved is what is used
    except TypeError as error:
        raise InvalidInput(
            f"a recipe holds names and numbers only, as its file does ({error}); for a network of your own, register a "
            "function that returns daband.encoders.pretrained.CustomFeatures, and name it"
        ) from None


def context_family(context_shape: tuple[int, ...]) -> str:
    """Which default applies: "image" for (channels, height, width) of at least 16 pixels a side, else "vector"."""
    is_image = len(context_shape) == 3 and context_shape[0] in (1, 3, 4) and min(context_shape[1:]) >= 16
    return "image" if is_image else "vector"


def recipe_names() -> list[str]:
    """The names that ``recipe_for`` knows."""
    return ["default", "default-rpd", "nlinucb", "paper", "paper-nlinucb", "small", "small-nlinucb"]


def recipe_for(name: str, *, context_shape: tuple[int, ...]) -> Recipe:
    """The named recipe for contexts of this shape: one per encoder family and none per data set."""
    image = context_family(context_shape) == "image"
    if name in ("paper", "paper-nlinucb"):
        return _paper(image) if name == "paper" else _paper(image).source_alone()
    if name in ("small", "small-nlinucb"):
        small = _small_image() if image else _small_vector()
        return small if name == "small" else small.source_alone()
    default = _default_image() if image else _default_vector()
    if name == "default":
        return default
    if name == "nlinucb":
        return default.source_alone()
    if name == "default-rpd":
        return default.with_weights(regression_error=0.5, predicted_reward=0.03)
    raise InvalidInput(f"unknown recipe {name!r} (known: {', '.join(recipe_names())})")


def _default_image() -> Recipe:
    return Recipe(
        weights={
            "source_cross_entropy": Weight(1.0),
            "adversarial": Weight(1.0, shape="sigmoid", steps=6000),
            "target_entropy": Weight(0.1),
            "target_diversity": Weight(0.1),
            "pseudo_labels": Weight(0.5, shape="step", start=6000),
        },
        encoder=EncoderSettings(name="conv"),
        learning=Learning(augmentation=Augmentation(shift=2, contrast=0.4), gate_exponent=8.0),
    )


def _default_vector() -> Recipe:
    # A steep gate, on the statistics too: where rewards are noisy the source is never solved, and
    # a difference between the domains may then be just what a choice should depend on.
    return Recipe(
        weights={"source_cross_entropy": Weight(1.0), "adversarial": Weight(0.3, shape="sigmoid", steps=1500)},
        encoder=EncoderSettings(name="mlp", options={"statistics": "gated"}),
        learning=Learning(steps=32, gate_exponent=8.0),
    )


def _small_image() -> Recipe:
    default = _default_image()
    ramp, teach = 500, 700  # steps; there are some 1,600 in the demo, against 19,200 in the paper's budget
    return replace(
        default.with_weights(
            adversarial=Weight(1.0, shape="sigmoid", steps=ramp),
            pseudo_labels=Weight(0.5, shape="step", start=teach),
        ),
        encoder=EncoderSettings(name="conv", options={"channels": (16, 24)}, latent=LatentSettings(hidden=64)),
        learning=replace(default.learning, learning_rate=2e-3, steps=16, batch=32, ema_decay=0.98, gate_exponent=4.0),
    )


def _small_vector() -> Recipe:
    default = _default_vector()
    return replace(default, learning=replace(default.learning, steps=16, batch=32, ema_decay=0.98))


def _paper(image: bool) -> Recipe:
    """Algorithm 1: the last H rounds, stale A and b, unit-norm theta, weights 1, 2, 1, lambda.

    The paper normalises images, which is read as [-1, 1] here, and sums L_RS over all arms, which is read as those that
    bandit feedback reveals.
    """
    return Recipe(
        weights={
            "source_squared": Weight(1.0),
            "regression_error": Weight(2.0),
            "predicted_reward": Weight(1.0),
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
        learning=Learning(learning_rate=1e-5, ema_decay=0.0),
        memory=Memory(replay="last", refit=False, unit_theta=True),
        alpha=0.05,
    )
