"""Several domains that are read as one: the rounds of all sources, the contexts of all targets.

A mixture has the indices of its first part, then those of its second, and so on. The part of the next round is drawn
in proportion to the remaining rounds of each. Every part keeps its own order, so that reading in blocks stays fast.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, wraps
from typing import Any, ParamSpec

import numpy as np

from daband._arrays import AnyArray, BoolArray, FloatArray, IntArray
from daband._domain_names import DomainNames
from daband.domains._contract import Contexts, EvaluationDomain, LoggedDomain, Pair, RewardDomain, gather_rows
from daband.errors import InvalidInput

P = ParamSpec("P")
_OF_SOURCES = ("source", "source_test")
_OF_TARGETS = ("target", "target_test", "target_labelled")


def _locate(parts: Mapping[Any, Any], indices: IntArray) -> tuple[IntArray, IntArray]:
    """Return the part index of each index of a mixture, and the index in that part, each (n,)."""
    ends = np.cumsum([0, *map(len, parts.values())])
    which = np.searchsorted(ends, indices, side="right") - 1
    return which, indices - ends[which]


@lru_cache(maxsize=8)
def _turns(sizes: tuple[int, ...], entropy: tuple[int, ...]) -> IntArray:
    """Return the part of every round of one pass."""
    return np.random.default_rng(entropy).permutation(np.repeat(np.arange(len(sizes)), sizes))


def _common(parts: Mapping[str, Any], what: str) -> Any:
    values = {name: getattr(part, what) for name, part in parts.items()}
    if len(set(values.values())) > 1:
        told = ", ".join(f"{name} {value}" for name, value in values.items())
        raise InvalidInput(f"domains must have one {what}, got {told}")
    return next(iter(values.values()))


class MixedContexts(Contexts):
    """The contexts of several domains."""

    n_arms: int

    def __init__(self, parts: Mapping[str, Contexts]) -> None:
        self.named: dict[str, Any] = dict(parts)
        self.context_shape, self.framing = _common(parts, "context_shape"), _common(parts, "framing")
        if isinstance(self, RewardDomain | LoggedDomain):
            self.n_arms = _common(parts, "n_arms")
        self.passes = min(part.passes for part in parts.values())

    def __len__(self) -> int:
        return sum(map(len, self.named.values()))

    @property
    def by_name(self) -> Mapping[str | None, Contexts]:
        return dict(self.named.items())

    def order(self, start: int, stop: int, *, seed: int) -> IntArray:
        self.check_rounds(start, stop)
        sizes = tuple(map(len, self.named.values()))
        n, firsts = sum(sizes), np.cumsum([0, *sizes])
        positions = np.empty(stop - start, np.int64)
        for number in range(start // n, -(-stop // n)):
            entropy = (seed, number, n, self._order_key)
            turns = _turns(sizes, entropy)
            own_seed = int(np.random.SeedSequence(entropy).generate_state(1)[0])
            begin, end = max(start - number * n, 0), min(stop - number * n, n)
            rounds = positions[begin + number * n - start : end + number * n - start]
            for index, part in enumerate(self.named.values()):
                rows = np.flatnonzero(turns[begin:end] == index)
                before = int(np.count_nonzero(turns[:begin] == index))
                rounds[rows] = firsts[index] + part.order(before, before + len(rows), seed=own_seed)
        return positions

    def read(self, indices: IntArray) -> AnyArray:
        return self._gather(indices, lambda part, rows: [part.read(rows)])[0]

    def by_domain(self, start: int, stop: int, *, seed: int) -> list[tuple[str | None, Any]]:
        which, positions = _locate(self.named, self.order(start, stop, seed=seed))
        read = "read_rounds" if isinstance(self, RewardDomain | LoggedDomain) else "read"
        rows = {name: positions[which == number] for number, name in enumerate(self.named)}
        return [(name, getattr(self.named[name], read)(of_part)) for name, of_part in rows.items() if len(of_part)]

    def _gather(self, indices: IntArray, read: Callable[[Any, IntArray], Sequence[AnyArray]]) -> list[AnyArray]:
        """Return the columns that ``read`` returns for every part, in the order of ``indices``."""
        which, positions = _locate(self.named, np.asarray(indices))
        parts = list(self.named.values())
        return gather_rows(which, lambda part, rows: read(parts[part], positions[rows]))


class MixedRewards(MixedContexts, RewardDomain):
    """The rounds of several reward domains."""

    _order_key = RewardDomain._order_key

    def read_rewards(self, indices: IntArray) -> tuple[FloatArray, FloatArray | None]:
        tables = self._gather(
            indices, lambda part, rows: [table for table in part.read_rewards(rows) if table is not None]
        )
        none = np.zeros(0, np.int64)
        all_expected = all(part.read_rewards(none)[1] is not None for part in self.named.values())
        return tables[0], tables[1] if all_expected else None


class MixedLog(MixedContexts, LoggedDomain):
    """The rounds of several logs."""

    _order_key = LoggedDomain._order_key

    def read_log(self, indices: IntArray) -> tuple[IntArray, FloatArray, FloatArray]:
        arms, rewards, propensities = self._gather(indices, lambda part, rows: part.read_log(rows))
        return arms, rewards, propensities

    def read_offered(self, indices: IntArray) -> BoolArray | None:
        none = np.zeros(0, np.int64)
        if all(part.read_offered(none) is None for part in self.named.values()):
            return None

        def read(part: LoggedDomain, rows: IntArray) -> list[AnyArray]:
            mask = part.read_offered(rows)
            return [np.ones((len(rows), self.n_arms), np.bool_) if mask is None else mask]

        return self._gather(indices, read)[0]


class MixedEvaluation(EvaluationDomain):
    """The contexts of several domains with their expected rewards, domain by domain."""

    def __init__(self, parts: Mapping[str, EvaluationDomain]) -> None:
        self.named = dict(parts)
        self.context_shape, self.n_arms = _common(parts, "context_shape"), _common(parts, "n_arms")

    def __len__(self) -> int:
        return sum(map(len, self.named.values()))

    @property
    def by_name(self) -> Mapping[str | None, EvaluationDomain]:
        return dict(self.named.items())

    def read(self, start: int, stop: int) -> AnyArray:
        return np.concatenate([part.read(*rows) for part, rows in self._overlaps(start, stop)])

    def read_expected(self, start: int, stop: int) -> FloatArray:
        return np.concatenate([part.read_expected(*rows) for part, rows in self._overlaps(start, stop)])

    def _overlaps(self, start: int, stop: int) -> Iterator[tuple[EvaluationDomain, list[int]]]:
        first = 0
        for part in self.named.values():
            yield part, [min(max(0, row - first), len(part)) for row in (start, stop)]
            first += len(part)


def origins(domain: Any, positions: IntArray) -> AnyArray:
    """Return the name of the domain of each of these indices of a mixture, (n,)."""
    names: AnyArray = np.array(list(domain.by_name))
    return names[_locate(domain.by_name, positions)[0]]


def mixed(parts: Mapping[str, Any]) -> Any:
    """Return these domains as one domain; a single domain is returned unchanged."""
    if len(parts) == 1:
        return next(iter(parts.values()))
    kinds: dict[type, Callable[[Mapping[str, Any]], Any]] = {
        RewardDomain: MixedRewards,
        LoggedDomain: MixedLog,
        EvaluationDomain: MixedEvaluation,
        Contexts: MixedContexts,
    }
    for kind, joined in kinds.items():
        if all(isinstance(part, kind) for part in parts.values()):
            return joined(parts)
    raise InvalidInput("domains must be of one kind: all with rewards, all logs, or all contexts alone")


def join_pairs(sources: Mapping[str, Pair], targets: Mapping[str, Pair], *, name: str) -> Pair:
    """Return one pair with the sources of some pairs and the targets of others, under the names given here."""
    pairs = [*sources.values(), *targets.values()]
    first = pairs[0]
    for what in ("context_shape", "n_arms", "arms"):
        _common({**sources, **targets}, what)

    def of_all(members: Mapping[str, Pair], part: str) -> Any:
        parts = {called: getattr(pair, part) for called, pair in members.items()}
        return None if any(one is None for one in parts.values()) else mixed(parts)

    return replace(
        first,
        name=name,
        **{part: of_all(sources, part) for part in _OF_SOURCES},
        **{part: of_all(targets, part) for part in _OF_TARGETS},
        feedback="one_hot" if all(pair.feedback == "one_hot" for pair in pairs) else "bandit",
        domains=DomainNames(tuple(sources), tuple(targets)),
    )


def takes_several(
    *,
    by_source: Sequence[str] = ("source_test",),
    by_target: Sequence[str] = ("target_test",),
    prepare: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> Callable[[Callable[P, Pair]], Callable[P, Pair]]:
    """Let a reader of one ``source`` and one ``target`` take ``sources`` and ``targets``, mappings by name.

    Args:
        by_source: arguments with one value for all sources, or a mapping by source name.
        by_target: the same for the targets; a single value is allowed for one target only.
        prepare: changes the arguments if there are several domains.
    """

    def extend(read: Callable[P, Pair]) -> Callable[P, Pair]:
        @wraps(read)
        def reader(*args: P.args, **given: P.kwargs) -> Pair:
            if given.get("sources") is None and given.get("targets") is None:
                return read(*args, **given)
            bound = inspect.signature(read).bind(*args, **given)
            bound.apply_defaults()
            return read_several(reader, prepare(bound.arguments), by_source=by_source, by_target=by_target)

        return reader

    return extend


def read_several(
    read: Callable[..., Pair], arguments: Mapping[str, Any], *, by_source: Sequence[str], by_target: Sequence[str]
) -> Pair:
    """Return the pair of several sources and targets, each read separately with the first domain of the other side."""
    given = dict(arguments)
    name = given.pop("name")
    of_source, of_target = ({what: given[what] for what in names} for names in (by_source, by_target))
    named: dict[str, Mapping[str, Any]] = {}
    for role in ("source", "target"):
        one, several = given.pop(role), given.pop(f"{role}s")
        if (one is None) == (several is None):
            raise InvalidInput(f"give either {role} or {role}s, a mapping from a name to what {role} would be")
        named[role] = {role: one} if several is None else several
        if not isinstance(named[role], Mapping) or not named[role]:
            raise InvalidInput(f"{role}s must be a mapping with a {role} by name, got {several!r}")
    for what, value in of_target.items():
        if value is not None and not isinstance(value, Mapping) and len(named["target"]) > 1:
            raise InvalidInput(f"{what} must be a mapping with one for each of {', '.join(named['target'])}")

    common = {what: value for what, value in given.items() if what not in (*by_source, *by_target)}

    def read_each(role: str, other: str, own: Mapping[str, Any]) -> dict[str, Pair]:
        beside = {other: next(iter(named[other].values()))}
        pairs = {}
        for called, one in named[role].items():
            more = {what: part.get(called) if isinstance(part, Mapping) else part for what, part in own.items()}
            alone = len(named[role]) == 1
            pairs[called] = read(**{role: one}, **beside, name=name if alone else f"{name}, {called}", **more, **common)
        return pairs

    by_source_name, by_target_name = read_each("source", "target", of_source), read_each("target", "source", of_target)
    _common({**by_source_name, **by_target_name}, "class_names")
    return join_pairs(by_source_name, by_target_name, name=name)


def restrict_pair(pair: Pair, *, sources: Sequence[str] | None = None, targets: Sequence[str] | None = None) -> Pair:
    """Return a pair with some of the sources and targets of another pair, by default all of them.

    >>> x, y = [[0.0], [1.0]] * 20, [0, 1] * 20
    >>> pair = daband.domains.from_arrays(sources={"de": (x, y), "fr": (x, y)}, targets={"pl": x, "cz": x})
    >>> daband.domains.restrict_pair(pair, sources=["fr"], targets=["pl"]).domains.names
    ('fr', 'pl')
    """
    before = pair.domains
    chosen = DomainNames(
        before.sources if sources is None else tuple(sources), before.targets if targets is None else tuple(targets)
    )
    for role in ("sources", "targets"):
        strangers = [name for name in getattr(chosen, role) if name not in getattr(before, role)]
        if strangers:
            raise InvalidInput(
                f"the pair has no {strangers[0]!r} among its {role} ({', '.join(getattr(before, role))})"
            )

    def some(whole: Any, names: tuple[str, ...], every: tuple[str, ...]) -> Any:
        if whole is None or names == every:
            return whole
        return mixed({name: whole.by_name[name] for name in names})

    parts = {part: some(getattr(pair, part), chosen.sources, before.sources) for part in _OF_SOURCES}
    parts |= {part: some(getattr(pair, part), chosen.targets, before.targets) for part in _OF_TARGETS}
    return replace(pair, domains=chosen, **parts)
