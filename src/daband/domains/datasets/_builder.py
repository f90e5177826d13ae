"""Register pairs from the declaration of a data set. Options, checks and splits are shared here.

A data set declares its description, its files and its reader. ``declare`` registers a pair for it, and one for each of
its variants (an ordered pair of domains, one table of many).
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from daband._arrays import AnyArray, FloatArray, IntArray
from daband.domains._contract import About, Pair
from daband.domains._registry import Resolve, Resource, need, register_pair
from daband.domains._splits import require_classes, split_half
from daband.domains.readers._arrays import from_arrays
from daband.errors import DataError, InvalidInput


@dataclass(frozen=True)
class Parts:
    """The data that was read: ``reader(**arguments)``, with the options that every pair has, makes the pair.

    ``note`` is added to the pair's summary. ``class_names`` are readable arm names, if a table has numbers.
    """

    arguments: Mapping[str, Any]
    reader: Callable[..., Pair] = from_arrays
    note: str = ""
    class_names: tuple[str, ...] | None = None


Read = Callable[..., Parts]


#: Options of every declared pair.
_COMMON = {
    option: parameter
    for option, parameter in inspect.signature(from_arrays).parameters.items()
    if option in ("passes", "target_passes", "source_test", "shift", "units")
}


def declare(family: str, *, read: Read, resolve: Resolve | None = None) -> None:
    """Register a data set of the catalogue as a pair, and each of its variants.

    Args:
        family: the pair's name, and its table in ``catalogue.toml``, which has the texts, arms, variants and files.
        read: a function of the data set's options, each with a default, that reads its files.
        resolve: see ``register_pair``.
    """
    said = catalogue()[family]
    about = About(**{name: said[name] for name in ("summary", "licence", "citation") if name in said})
    summary, class_names, members = said.get("variant", about.summary), said.get("class_names"), _members(said)
    name, choices, variants = family, said.get("choices", {}), {}
    if option := said.get("variants_of"):
        name, choices = f"{family}/{{{option}}}", {option: tuple(members)}
        variants = {member: {option: member} for member in members}
    elif members:
        name, choices = f"{family}/{{source}}-{{target}}", dict.fromkeys(("source", "target"), tuple(members))
        pairs = permutations(said.get("ordered", members), 2)
        variants = {f"{one}-{other}": {"source": one, "target": other} for one, other in pairs}
    resources = _resources_of(family)
    read_options = dict(inspect.signature(read).parameters)
    common = {option: parameter for option, parameter in _COMMON.items() if option not in said.get("without", ())}

    def build_with(fixed: Mapping[str, Any]) -> Callable[..., Pair]:
        def build(**given: Any) -> Pair:
            options = {option: parameter.default for option, parameter in read_options.items()}
            options |= dict(fixed) | {option: value for option, value in given.items() if option in read_options}
            _check_choices(family, options, choices)
            parts = read(**options)
            called = name.format(**options)
            arguments = {**parts.arguments, "name": called}
            arguments |= {option: given.get(option, parameter.default) for option, parameter in common.items()}
            if class_names is not None:
                arguments["class_names"] = tuple(class_names)
                _require_every_class(arguments, class_names, called)
                if parts.reader is from_arrays:
                    arguments["n_arms"] = len(class_names)
            pair = parts.reader(**arguments)
            sentence = summary.format(**options) + parts.note
            names = parts.class_names or pair.class_names
            return replace(pair, about=replace(about, summary=sentence), class_names=names)

        own = [parameter for option, parameter in read_options.items() if option not in fixed]
        build.__signature__ = inspect.Signature([*own, *common.values()])  # type: ignore[attr-defined]
        build.__doc__, build.__name__ = read.__doc__, family
        return build

    register_pair(family, about=about, resolve=resolve, resources=resources)(build_with({}))
    for variant, fixed in variants.items():
        mine = tuple(one for one in resources if not one.of or one.of in fixed.values())
        of_variant = replace(about, summary=summary.format(**fixed))
        register_pair(f"{family}/{variant}", about=of_variant, resolve=resolve, resources=mine)(build_with(fixed))


@lru_cache(maxsize=1)
def catalogue() -> dict[str, dict[str, Any]]:
    """Return ``catalogue.toml``, the descriptions of the research data sets."""
    return tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))


def _members(said: Mapping[str, Any]) -> dict[str, str]:
    """Return the domains, or the values of an option, that a table of the catalogue lists, with a text about each."""
    members = said.get("members", {})
    return members if isinstance(members, dict) else dict.fromkeys(members, "")


def _resources_of(family: str) -> list[Resource]:
    said = catalogue()[family]
    return [resource for entry in said.get("resources", ()) for resource in _resources(entry, _members(said))]


def _resources(entry: Mapping[str, Any], texts: Mapping[str, str]) -> list[Resource]:
    """Return the resources of a catalogue entry: those of another table, one for each member, or one."""
    fields = {**entry, "paths": tuple(entry.get("paths", ()))}
    if like := fields.pop("like", ""):
        del fields["paths"]
        return [replace(one, **fields) for other in catalogue()[like]["resources"] for one in _resources(other, {})]
    if fields.get("of") != "{of}":
        return [Resource(**fields)]
    return [
        Resource(**{**fields, "what": fields["what"].format(of=of, text=text), "of": of,
                    "paths": tuple(path.format(of=of) for path in fields["paths"])})
        for of, text in texts.items()
    ]  # fmt: skip


def file_of(family: str, of: str = "", *, pair: str = "") -> Path:
    """Return the file of a data set, or of one of its members; if the file is missing, the error names the pair."""
    paths = next(resource.paths for resource in _resources_of(family) if resource.of == of)
    return need(paths, pair=pair or family)


def halved(
    contexts: AnyArray, rewards: AnyArray, *, name: str, groups: Sequence[str] | None = None
) -> dict[str, tuple[AnyArray, AnyArray] | AnyArray]:
    """Return the target arguments of ``from_arrays``: half of each class for training, half for the evaluator.

    ``rewards`` are labels (n,) or a table (n, K), whose best arms are the classes.
    """
    best = rewards.argmax(axis=1) if rewards.ndim == 2 else rewards
    seen, held = split_half(best, name=name, groups=groups)
    return {
        "target": contexts[seen],
        "target_labelled": (contexts[seen], rewards[seen]),
        "target_test": (contexts[held], rewards[held]),
    }


def load_packed(path: Path, keys: Sequence[str]) -> list[AnyArray]:
    """Return arrays of an ``npz``; a damaged file or one without these keys is an error that names it."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as packed:
            return [packed[key] for key in keys]
    except Exception as error:  # zipfile.BadZipFile and zlib.error have no common root below Exception
        raise DataError(
            f"{path} is damaged, or has no arrays {', '.join(keys)} ({error}); put an undamaged copy there"
        ) from None


def load_labelled(
    path: Path, keys: tuple[str, str], *, shape: tuple[int, ...], n_classes: int, dtype: Any = np.uint8
) -> tuple[AnyArray, IntArray]:
    """Return contexts (n, *shape) of type ``dtype``, or of any type, and labels (n,) under these keys of an ``npz``."""
    contexts, labels = load_packed(path, keys)
    return _checked(path, contexts, labels, shape=shape, n_classes=n_classes, dtype=dtype)


def load_halves(
    path: Path, *, shape: tuple[int, ...], n_classes: int, dtype: Any = np.uint8
) -> list[tuple[AnyArray, IntArray]]:
    """Return contexts and labels of both parts of an ``npz`` with ``x_train y_train x_test y_test``."""
    return [
        load_labelled(path, (f"x_{part}", f"y_{part}"), shape=shape, n_classes=n_classes, dtype=dtype)
        for part in ("train", "test")
    ]


def load_matlab(path: Path, *, n_features: int, n_classes: int, first_label: int) -> tuple[FloatArray, IntArray]:
    """Return features (n, d) and labels (n,) from 0, of a ``.mat`` file with variables ``fts`` and ``labels``."""
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=["fts", "labels"])
        features, labels = np.asarray(content["fts"], np.float64), np.asarray(content["labels"], np.int64)
    except Exception as error:  # loadmat raises many kinds for damaged files
        raise DataError(f"{path} is not a MATLAB file with the variables fts and labels ({error})") from None
    labels = labels.reshape(-1) - first_label
    return _checked(path, features, labels, shape=(n_features,), n_classes=n_classes, dtype=np.float64)


def _checked(
    path: Path, contexts: AnyArray, labels: AnyArray, *, shape: tuple[int, ...], n_classes: int, dtype: Any
) -> tuple[AnyArray, IntArray]:
    """Return contexts and labels; raise an error that names the file if shape, type or number is wrong."""
    if contexts.shape[1:] != shape or (dtype is not None and contexts.dtype != dtype):
        sizes, kind = ", ".join(map(str, shape)), "" if dtype is None else f" of {np.dtype(dtype)}"
        raise DataError(f"{path} should hold contexts (n, {sizes}){kind}, got {contexts.shape} of {contexts.dtype}")
    labels_fit = labels.shape == (len(contexts),) and labels.dtype.kind in "ui"
    if not labels_fit or labels.min(initial=0) < 0 or labels.max(initial=0) >= n_classes:
        raise DataError(
            f"{path} should hold {len(contexts)} labels of {n_classes} classes, got {labels.shape} of {labels.dtype}"
        )
    return contexts, labels.astype(np.int64)


def _check_choices(family: str, options: Mapping[str, Any], choices: Mapping[str, Sequence[str]]) -> None:
    for option, allowed in choices.items():
        if options[option] not in allowed:
            what = "domains" if option in ("source", "target") else f"values of {option}"
            raise InvalidInput(f"{family}'s {what} are {', '.join(allowed)}, got {options[option]!r}")
    if "source" in choices and options["source"] == options.get("target"):
        raise InvalidInput(f"source and target are both {options['source']!r}")


def _require_every_class(arguments: Mapping[str, Any], class_names: Sequence[str], name: str) -> None:
    for part in ("source", "target_labelled", "target_test"):
        given = arguments.get(part)
        labels: IntArray | None = given[1] if isinstance(given, tuple) else None
        if labels is not None and labels.ndim == 1:
            require_classes(labels, class_names, where=f"{name}'s {part}")
