"""Read several domains as one: the rounds of all sources, or the contexts of all targets.

The component domains of a mixture are called parts. The contexts of the first part have the first
indices of the mixture, followed by those of the second part, and so on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec

import numpy as np

from daband.base._arrays import AnyArray, FloatArray, IntArray
from daband.domains._contract import (
    Contexts,
    EvaluationDomain,
    FullRounds,
    LoggedDomain,
    Pair,
    RewardDomain,
    gather_rows,
)
from daband.errors import InvalidInput
from daband.features._domain_names import DomainNames
from daband.rounds._rounds import Rounds

P = ParamSpec("P")
#: Fields of a pair with source data.
_SOURCE_FIELDS = ("source", "source_test")
#: Fields of a pair with target data.
_TARGET_FIELDS = ("target", "target_test", "target_labelled")


def _locate(parts: Mapping[Any, Any], indices: IntArray) -> tuple[IntArray, IntArray]:
    """Return the part number and the index within that part, (n,) each, for indices (n,) of a
    mixture.
    """
    starts = np.cumsum([0, *map(len, parts.values())])
    part_numbers = np.searchsorted(starts, indices, side="right") - 1
    return part_numbers, indices - starts[part_numbers]


def _get_common(parts: Mapping[str, Any], attribute: str) -> Any:
    """Return the common value of an attribute of all parts.

    Raise an error if parts have different values.
    """
    value_by_part = {name: getattr(part, attribute) for name, part in parts.items()}
    if len(set(value_by_part.values())) > 1:
        values_text = ", ".join(f"{name} {value}" for name, value in value_by_part.items())
        raise InvalidInput(f"all domains must have the same {attribute}, got {values_text}")
    return next(iter(value_by_part.values()))


class MixedContexts(Contexts):
    """The contexts of several domains, as one domain."""

    n_arms: int

    def __init__(self, parts: Mapping[str, Contexts]) -> None:
        self.parts: dict[str, Any] = dict(parts)
        self._names: AnyArray = np.array(list(parts))
        self.context_shape = _get_common(parts, "context_shape")
        self.framing = _get_common(parts, "framing")
        if isinstance(self, RewardDomain | LoggedDomain):
            self.n_arms = _get_common(parts, "n_arms")

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    @property
    def by_name(self) -> Mapping[str | None, Contexts]:
        return dict(self.parts.items())

    def read(self, indices: IntArray) -> AnyArray:
        return self._gather(indices, lambda part, rows: [part.read(rows)])[0]

    def read_by_domain(self, start: int, stop: int, *, seed: int) -> list[tuple[str | None, Any]]:
        part_numbers, local_indices = _locate(self.parts, self.order(start, stop, seed=seed))
        method = "read_rounds" if isinstance(self, RewardDomain | LoggedDomain) else "read"
        return [
            (name, getattr(part, method)(local_indices[part_numbers == number]))
            for number, (name, part) in enumerate(self.parts.items())
            if number in part_numbers
        ]

    def _gather(
        self, indices: IntArray, read: Callable[[Any, IntArray], Sequence[AnyArray]]
    ) -> list[AnyArray]:
        """Return the arrays that ``read(part, rows)`` returns for all parts, with rows in the order
        of ``indices``.
        """
        part_numbers, local_indices = _locate(self.parts, np.asarray(indices))
        parts = list(self.parts.values())
        return gather_rows(
            part_numbers, lambda number, rows: read(parts[number], local_indices[rows])
        )


class MixedRewards(MixedContexts, RewardDomain):
    """The rounds of several reward domains, as one domain."""

    _order_seed = RewardDomain._order_seed

    def __init__(self, parts: Mapping[str, RewardDomain]) -> None:
        super().__init__(parts)
        self.full_feedback = all(part.full_feedback for part in parts.values())

    def read_rewards(self, indices: IntArray) -> tuple[FloatArray, FloatArray | None]:
        no_rows = np.zeros(0, np.int64)
        has_expected = all(
            part.read_rewards(no_rows)[1] is not None for part in self.parts.values()
        )
        arrays = self._gather(
            indices, lambda part, rows: part.read_rewards(rows)[: 1 + has_expected]
        )
        return arrays[0], arrays[1] if has_expected else None

    def read_rounds(self, indices: IntArray) -> FullRounds:
        names = self._names[_locate(self.parts, np.asarray(indices))[0]]
        return replace(super().read_rounds(indices), domains=names)


class MixedLog(MixedContexts, LoggedDomain):
    """The rounds of several logs, as one log."""

    _order_seed = LoggedDomain._order_seed

    def read_rounds(self, indices: IntArray) -> Rounds:
        part_numbers, local_indices = _locate(self.parts, np.asarray(indices))
        parts: list[Rounds] = [
            part.read_rounds(local_indices[part_numbers == number])
            for number, part in enumerate(self.parts.values())
        ]
        ranks = np.argsort(np.argsort(part_numbers, kind="stable"), kind="stable")
        return replace(Rounds.join(parts).select(ranks), domains=self._names[part_numbers])


def mix_domains(parts: Mapping[str, Any]) -> Any:
    """Return several domains as one. A single domain is returned unchanged."""
    if len(parts) == 1:
        return next(iter(parts.values()))
    if all(isinstance(part, EvaluationDomain) for part in parts.values()):
        return EvaluationDomain(mix_domains({name: part.domain for name, part in parts.items()}))
    mixture_types: dict[type, Callable[[Mapping[str, Any]], Any]] = {
        RewardDomain: MixedRewards,
        LoggedDomain: MixedLog,
        Contexts: MixedContexts,
    }
    for domain_type, mixture_type in mixture_types.items():
        if all(isinstance(part, domain_type) for part in parts.values()):
            return mixture_type(parts)
    raise InvalidInput(
        "domains must be of one type: all with rewards, all logs, or all with contexts only"
    )


def join_pairs(sources: Mapping[str, Pair], targets: Mapping[str, Pair], *, name: str) -> Pair:
    """Return one pair named ``name``, with the sources of the pairs ``sources`` and the targets of
    ``targets``.
    """
    pairs = [*sources.values(), *targets.values()]
    first_pair = pairs[0]
    for attribute in ("context_shape", "n_arms", "arms"):
        _get_common({**sources, **targets}, attribute)

    def mix_field(pairs_by_name: Mapping[str, Pair], field: str) -> Any:
        """Return a field of several pairs as one domain, or None if one of the pairs lacks it."""
        parts = {domain_name: getattr(pair, field) for domain_name, pair in pairs_by_name.items()}
        return None if any(part is None for part in parts.values()) else mix_domains(parts)

    return replace(
        first_pair,
        name=name,
        **{field: mix_field(sources, field) for field in _SOURCE_FIELDS},
        **{field: mix_field(targets, field) for field in _TARGET_FIELDS},
        feedback="one_hot" if all(pair.feedback == "one_hot" for pair in pairs) else "bandit",
        domains=DomainNames(tuple(sources), tuple(targets)),
    )


def allow_several_domains(
    *,
    mapped_fields: Sequence[str] = ("target_test",),
    prepare: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> Callable[[Callable[P, Pair]], Callable[P, Pair]]:
    """Return a decorator that lets a reader of one source and target also accept ``sources`` and
    ``targets``.

    Args:
        mapped_fields: the arguments, also fields of a pair, that are mappings by target name with
            several targets.
        prepare: a function that changes the dictionary of arguments if there are several domains.
    """

    def decorate(read: Callable[P, Pair]) -> Callable[P, Pair]:
        @wraps(read)
        def reader(*args: P.args, **kwargs: P.kwargs) -> Pair:
            if kwargs.get("sources") is None and kwargs.get("targets") is None:
                return read(*args, **kwargs)
            bound_arguments = inspect.signature(read).bind(*args, **kwargs)
            bound_arguments.apply_defaults()
            return read_all_domains(
                reader, prepare(bound_arguments.arguments), mapped_fields=mapped_fields
            )

        return reader

    return decorate


def read_all_domains(
    read: Callable[..., Pair], arguments: Mapping[str, Any], *, mapped_fields: Sequence[str]
) -> Pair:
    """Return the pair of several sources and targets.

    Each source is read as a pair with the first target, and each target as a pair with the first
    source. The argument ``source_test`` is one value for all sources, or a mapping by source name.

    Args:
        read: the reader of one source and target.
        arguments: all arguments of the reader, including ``sources`` and ``targets``.
        mapped_fields: as in ``allow_several_domains``.
    """
    common_arguments = dict(arguments)
    pair_name = common_arguments.pop("name")
    source_options = {"source_test": common_arguments.pop("source_test")}
    target_options = {field: common_arguments.pop(field) for field in mapped_fields}
    domains: dict[str, Mapping[str, Any]] = {}
    for role in ("source", "target"):
        only_domain = common_arguments.pop(role)
        domains_by_name = common_arguments.pop(f"{role}s")
        if (only_domain is None) == (domains_by_name is None):
            raise InvalidInput(
                f"pass either {role}, or {role}s as a mapping from a name to a {role}"
            )
        domains[role] = {role: only_domain} if domains_by_name is None else domains_by_name
        if not isinstance(domains[role], Mapping) or not domains[role]:
            raise InvalidInput(
                f"{role}s must be a mapping with a {role} by name, got {domains_by_name!r}"
            )
    for role, options in (("source", source_options), ("target", target_options)):
        names_text = ", ".join(domains[role])
        for field, value in options.items():
            if isinstance(value, Mapping) and set(value) != set(domains[role]):
                raise InvalidInput(
                    f"{field} must have a value for each of {names_text}, got {', '.join(value)}"
                )
            is_one_value = value is not None and not isinstance(value, Mapping)
            if role == "target" and is_one_value and len(domains[role]) > 1:
                raise InvalidInput(
                    f"{field} must be a mapping with a value for each of {names_text}"
                )

    def read_each(role: str, other_role: str, options: Mapping[str, Any]) -> dict[str, Pair]:
        """Return a pair for each domain of a role.

        An option is one value for all, or a mapping by domain name.
        """
        pairs = {}
        for name, domain in domains[role].items():
            both_domains = {role: domain, other_role: next(iter(domains[other_role].values()))}
            own_options = {
                field: value[name] if isinstance(value, Mapping) else value
                for field, value in options.items()
            }
            full_name = pair_name if len(domains[role]) == 1 else f"{pair_name}, {name}"
            pairs[name] = read(**both_domains, name=full_name, **own_options, **common_arguments)
        return pairs

    sources = read_each("source", "target", source_options)
    targets = read_each("target", "source", target_options)
    _get_common({**sources, **targets}, "class_names")
    return join_pairs(sources, targets, name=pair_name)


def restrict_pair(
    pair: Pair, *, sources: Sequence[str] | None = None, targets: Sequence[str] | None = None
) -> Pair:
    """Return a pair with some of the sources and targets of another pair, by default all of them.

    >>> x, y = [[0.0], [1.0]] * 20, [0, 1] * 20
    >>> pair = daband.domains.from_arrays(sources={"de": (x, y), "fr": (x, y)}, targets={"pl": x, "cz": x})
    >>> daband.domains.restrict_pair(pair, sources=["fr"], targets=["pl"]).domains.names
    ('fr', 'pl')
    """
    domains = pair.domains
    kept_domains = DomainNames(
        domains.sources if sources is None else tuple(sources),
        domains.targets if targets is None else tuple(targets),
    )
    for role in ("sources", "targets"):
        names = getattr(domains, role)
        unknown_names = [name for name in getattr(kept_domains, role) if name not in names]
        if unknown_names:
            raise InvalidInput(
                f"the pair has no {unknown_names[0]!r} among its {role} ({', '.join(names)})"
            )

    def restrict(domain: Any, names: tuple[str, ...], all_names: tuple[str, ...]) -> Any:
        """Return the parts of a domain with these names as one domain."""
        if domain is None or names == all_names:
            return domain
        return mix_domains({name: domain.by_name[name] for name in names})

    fields = {
        field: restrict(getattr(pair, field), getattr(kept_domains, role), getattr(domains, role))
        for role, role_fields in (("sources", _SOURCE_FIELDS), ("targets", _TARGET_FIELDS))
        for field in role_fields
    }
    return replace(pair, domains=kept_domains, **fields)
