"""Register the research data sets as pairs, with common options, checks and splits.

A data set has an entry in ``catalogue.toml`` (description, licence, files) and a function that
reads its files. ``declare`` registers a pair for it, and one for each of its variants: every
ordered pair of its domains, or every value of one of its options. A family is a data set with its
variants. The functions after ``declare`` help to read files.
"""

from __future__ import annotations

import inspect
import tomllib
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from daband.base._arrays import AnyArray, FloatArray, IntArray
from daband.domains._contract import About, Pair, RewardDomain
from daband.domains._registry import ResolveFunction, Resource, register_pair, require_data
from daband.domains._splits import split_half
from daband.domains.readers._arrays import from_arrays
from daband.errors import DataError, InvalidInput


@dataclass(frozen=True)
class PairData:
    """The data of a pair, and the function that builds the pair from them."""

    #: The arguments of ``reader`` that depend on the data set; the common options are added to
    #: them.
    arguments: Mapping[str, Any]
    #: The function that builds the pair.
    reader: Callable[..., Pair] = from_arrays
    #: Text that is added to the pair's summary.
    note: str = ""
    #: Names of the arms for reports, if the data have numbers instead of names.
    class_names: tuple[str, ...] | None = None


#: A function that reads the files of a data set. Its keyword arguments are the options of the data
#: set.
ReadFunction = Callable[..., PairData]
#: Options of every data set, with the same defaults as in ``from_arrays``.
_COMMON_OPTIONS = {
    option: parameter
    for option, parameter in inspect.signature(from_arrays).parameters.items()
    if option in ("source_test", "shift", "units")
}


def declare(family: str, *, read: ReadFunction, resolve: ResolveFunction | None = None) -> None:
    """Register a data set of the catalogue as a pair, and each of its variants.

    Args:
        family: the name of the data set, of its pair, and of its table in ``catalogue.toml``.
        read: reads the files. Each of its keyword arguments is an option of the data set, with a
            default.
        resolve: as in ``register_pair``.
    """
    entry = load_catalogue()[family]
    about = About(
        **{name: entry[name] for name in ("summary", "licence", "citation") if name in entry}
    )
    summary = entry.get("variant", about.summary)
    class_names = entry.get("class_names")
    name_template, choices, variants = _describe_variants(family, entry)
    resources = _list_resources(family)
    read_options = dict(inspect.signature(read).parameters)
    omitted_names = entry.get("without", ())
    common_options = {
        option: parameter
        for option, parameter in _COMMON_OPTIONS.items()
        if option not in omitted_names
    }

    def create_build_function(fixed_options: Mapping[str, Any]) -> Callable[..., Pair]:
        """Return the function that builds a pair from keyword options, without an argument for
        ``fixed_options``.
        """

        def build(**kwargs: Any) -> Pair:
            # ``kwargs`` has options of ``read`` and common options; those that are missing have
            # their defaults.
            options = {option: parameter.default for option, parameter in read_options.items()}
            given_options = {
                option: value for option, value in kwargs.items() if option in read_options
            }
            options |= {**fixed_options, **given_options}
            _check_choices(family, options, choices)
            pair_data = read(**options)
            pair_name = name_template.format(**options)
            arguments = {**pair_data.arguments, "name": pair_name}
            arguments |= {
                option: kwargs.get(option, parameter.default)
                for option, parameter in common_options.items()
            }
            if class_names is not None:
                arguments["class_names"] = tuple(class_names)
                if pair_data.reader is from_arrays:
                    arguments["n_arms"] = len(class_names)
            pair = pair_data.reader(**arguments)
            if isinstance(pair.source, RewardDomain):
                pair.source.full_feedback = False  # rounds are played, as in the paper
            pair_summary = summary.format(**options) + pair_data.note
            arm_names = pair_data.class_names or pair.class_names
            return replace(pair, about=replace(about, summary=pair_summary), class_names=arm_names)

        free_parameters = [
            parameter for option, parameter in read_options.items() if option not in fixed_options
        ]
        # ``PairEntry.list_options`` reads the options of a pair from this signature.
        build.__signature__ = inspect.Signature([*free_parameters, *common_options.values()])  # type: ignore[attr-defined]
        build.__doc__ = read.__doc__
        build.__name__ = family
        return build

    register_pair(family, about=about, resolve=resolve, resources=resources)(
        create_build_function({})
    )
    for variant, fixed_options in variants.items():
        own_domains = ("", *fixed_options.values())
        own_files = [resource for resource in resources if resource.domain in own_domains]
        variant_about = replace(about, summary=summary.format(**fixed_options))
        register = register_pair(
            f"{family}/{variant}", about=variant_about, resolve=resolve, resources=own_files
        )
        register(create_build_function(fixed_options))


def _describe_variants(
    family: str, entry: Mapping[str, Any]
) -> tuple[str, Any, dict[str, dict[str, str]]]:
    """Return the names, the allowed options and the variants of the pairs of a data set.

    Returns:
        The format string of a pair's name, with fields for options; the allowed values of options;
        and the options of each variant, by the name of the variant.
    """
    members = tuple(_list_members(entry))
    if option := entry.get("variants_of"):
        return (
            f"{family}/{{{option}}}",
            {option: members},
            {member: {option: member} for member in members},
        )
    if not members:
        return family, entry.get("choices", {}), {}
    domain_pairs = permutations(entry.get("ordered", members), 2)
    variants = {
        f"{source}-{target}": {"source": source, "target": target}
        for source, target in domain_pairs
    }
    return f"{family}/{{source}}-{{target}}", {"source": members, "target": members}, variants


@lru_cache(maxsize=1)
def load_catalogue() -> dict[str, dict[str, Any]]:
    """Return the entries of ``catalogue.toml`` by the name of the data set."""
    return tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))


def _list_members(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the members of a data set (domains, or values of an option) with their descriptions,
    which may be "".
    """
    members = entry.get("members", {})
    return members if isinstance(members, dict) else dict.fromkeys(members, "")


def _list_resources(family: str) -> list[Resource]:
    """Return the files that a data set needs."""
    entry = load_catalogue()[family]
    resource_entries = entry.get("resources", ())
    members = _list_members(entry)
    return [
        resource
        for resource_entry in resource_entries
        for resource in _expand_resource(resource_entry, members)
    ]


def _expand_resource(
    resource_entry: Mapping[str, Any], member_descriptions: Mapping[str, str]
) -> list[Resource]:
    """Return the resources that one resource entry of the catalogue describes.

    An entry with ``like = "mnist"`` describes the resources of that data set, with the other fields
    of the entry in place of theirs. An entry with ``domain = "{domain}"`` describes one resource
    for each member.
    """
    fields = {**resource_entry, "paths": tuple(resource_entry.get("paths", ()))}
    if template_family := fields.pop("like", ""):
        del fields["paths"]
        templates = load_catalogue()[template_family]["resources"]
        return [
            replace(resource, **fields)
            for template in templates
            for resource in _expand_resource(template, {})
        ]
    if fields.get("domain") != "{domain}":
        return [Resource(**fields)]
    return [
        Resource(
            **{
                **fields,
                "description": fields["description"].format(domain=domain, text=text),
                "domain": domain,
                "paths": tuple(path.format(domain=domain) for path in fields["paths"]),
            }
        )
        for domain, text in member_descriptions.items()
    ]


def find_data_file(family: str, domain: str = "", *, pair: str = "") -> Path:
    """Return the path of the file of a data set, or of one of its domains.

    Raise an error if the file is missing.

    ``pair`` is the name of the pair in the error message, by default ``family``.
    """
    paths = next(
        resource.paths for resource in _list_resources(family) if resource.domain == domain
    )
    return require_data(paths, pair=pair or family)


def split_target(
    contexts: AnyArray, rewards: AnyArray, *, name: str, groups: Sequence[str] | None = None
) -> dict[str, tuple[AnyArray, AnyArray] | AnyArray]:
    """Return the target arguments of ``from_arrays``: half of each class for training, half for the
    evaluator.

    Args:
        contexts: (n, *C).
        rewards: labels (n,), or rewards (n, K), whose best arms are then the labels.
        name: name of the split, from which the seed of the draw is computed.
        groups: the group of each context; contexts of one group are in the same half.
    """
    labels = rewards.argmax(axis=1) if rewards.ndim == 2 else rewards
    training_rows, test_rows = (
        split_half(labels, name=name) if groups is None else _split_groups(labels, groups, name)
    )
    return {
        "target": contexts[training_rows],
        "target_labelled": (contexts[training_rows], rewards[training_rows]),
        "target_test": (contexts[test_rows], rewards[test_rows]),
    }


def _split_groups(labels: AnyArray, groups: Sequence[str], name: str) -> tuple[AnyArray, AnyArray]:
    """Return the rows of two halves of each class, with each group in one half."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    group_ids = np.unique(np.asarray(groups), return_inverse=True)[1]
    halves: tuple[list[AnyArray], list[AnyArray]] = ([], [])
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        sizes = [0, 0]
        for group_id in generator.permutation(np.unique(group_ids[rows])):
            group_rows = rows[group_ids[rows] == group_id]
            half = 0 if sizes[0] <= sizes[1] else 1  # the half with fewer rows so far
            halves[half].append(group_rows)
            sizes[half] += len(group_rows)
    first, second = (generator.permutation(np.concatenate(blocks)) for blocks in halves)
    return first, second


def load_arrays(path: Path, names: Sequence[str]) -> list[AnyArray]:
    """Return the arrays with these names from an ``npz`` file.

    Raise an error if it is damaged or lacks an array.
    """
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return [arrays[name] for name in names]
    # zipfile.BadZipFile and zlib.error have no common root below Exception
    except Exception as error:
        raise DataError(
            f"{path} is damaged, or lacks one of the arrays {', '.join(names)} ({error}); replace"
            " it by a good copy"
        ) from None


def load_matlab(path: Path, *, first_label: int) -> tuple[FloatArray, IntArray]:
    """Return the variables ``fts`` (n, d) and ``labels`` (n,) of a MATLAB file.

    Labels start at ``first_label`` in the file, and at 0 in the result.
    """
    from scipy.io import loadmat

    try:
        variables = loadmat(path, variable_names=["fts", "labels"])
        labels = np.asarray(variables["labels"], np.int64).reshape(-1) - first_label
        return np.asarray(variables["fts"], np.float64), labels
    except Exception as error:  # loadmat raises many types of errors for damaged files
        raise DataError(
            f"{path} is not a MATLAB file with the variables fts and labels ({error})"
        ) from None


def _check_choices(
    family: str, options: Mapping[str, Any], choices: Mapping[str, Sequence[str]]
) -> None:
    """Raise an error if an option has a value that is not allowed."""
    for option, allowed_values in choices.items():
        if options[option] not in allowed_values:
            values_name = "domains" if option in ("source", "target") else f"values of {option}"
            raise InvalidInput(
                f"{family}'s {values_name} are {', '.join(allowed_values)}, got {options[option]!r}"
            )
    if "source" in choices and options["source"] == options.get("target"):
        raise InvalidInput(
            f"source and target must be different domains, got {options['source']!r} for both"
        )
