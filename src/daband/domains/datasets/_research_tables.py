"""Tables: 26 natural ones, doses of warfarin, and solvers for SAT."""

from __future__ import annotations

from typing import Any

import numpy as np

from daband._arrays import FloatArray
from daband._lazy_polars import pl
from daband.domains.datasets._builder import Parts, catalogue, declare, facts, file_of, load_packed
from daband.domains.readers._columns import Columns
from daband.domains.readers._reading import read_table
from daband.domains.readers._tables import from_table
from daband.errors import DataError

# Natural tables: 26 real tables, each split into two domains by a column of its own (region, sex, year, store).
#
# On most of them a policy of the source is as good in the target as one trained there: adaptation has nothing to
# gain. On earnings-years, computers-trend and salary-country the meaning of the arms moved (prices, wages,
# currencies).


def _read_natural(*, table: str = "wages-region") -> Parts:
    """One table, read as a user's is: strings are categories, gaps are filled and flagged; the arms are quantiles.

    Half of the target's rows, the same in every run and none that the evaluator holds, are what training sees.

    Args:
        table: which one.
    """
    path = file_of("natural_tables", table, pair=f"natural_tables/{table}")
    frame = read_table(path)
    missing = [name for name in ("domain", "arm") if name not in frame.columns]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}; `daband data check natural_tables` says what it is")
    return _parts_natural(frame)


def _parts_natural(frame: pl.DataFrame) -> Parts:
    context = tuple(name for name in frame.columns if name not in ("domain", "arm"))
    texts = tuple(name for name in context if frame[name].dtype == pl.String)
    columns = Columns(context=context, categorical=texts, label="arm")
    source, target = (frame.filter(pl.col("domain") == domain) for domain in ("source", "target"))
    return Parts({"source": source, "target": target, "columns": columns}, reader=from_table)


def _tiny_natural(*, table: str = "wages-region") -> Parts:
    generator = np.random.default_rng(len(table))
    n = 320
    target = np.arange(n) >= n // 2
    age = generator.uniform(18.0, 70.0, n) + 5.0 * target
    town = generator.choice(["north", "south", "west"], size=n)
    income = np.where(generator.random(n) < 0.1, np.nan, generator.normal(30.0, 8.0, n))
    score = 0.1 * (age - 45.0) + (town == "south") + generator.normal(0.0, 0.5, n)
    arm = np.digitize(score, np.quantile(score, [0.33, 0.67]))
    columns = {"domain": np.where(target, "target", "source"), "arm": arm, "age": age, "town": town, "income": income}
    return _parts_natural(pl.DataFrame(columns).with_columns(pl.col("income").fill_nan(None)))


declare("natural_tables", read=_read_natural, tiny=_tiny_natural, **facts("natural_tables"))


# Warfarin: which of three doses does a patient need? Learned on one population, applied to another.


_FILE = "warfarin/warfarin.csv"
_RACES: dict[str, str] = catalogue()["warfarin"]["members"]
_ARMS = ("low", "medium", "high")
_DOSE = "Therapeutic Dose of Warfarin"
_LOW, _HIGH = 21.0, 49.0  # mg a week
_NUMERIC, _YES_NO, _GENETIC = (tuple(names) for names in catalogue()["warfarin"]["columns"].values())
_CATEGORICAL = ("Gender", *_YES_NO, *_GENETIC)


def _read_warfarin(*, source: str = "white", target: str = "asian") -> Parts:
    """Patients of one population as source, of another as target; 3 arms.

    The arm that pays 1 is the class of the therapeutic dose: low (under 21 mg a week), medium (21 to 49) or high.
    Patients without a known dose are left out. Contexts are age (by decade), height and weight, centred and scaled,
    each with a flag where missing; gender, diseases, drugs and genotypes one-hot, with missing as a category.
    ``Race`` defines the domain and is not part of the context, nor is anything that is known only after dosing.

    Args:
        source: white, asian, black or unknown.
        target: another of them; half of its patients are seen in training, the other half is kept for the evaluator.
    """
    return _parts_warfarin(read_table(file_of("warfarin")), source, target)


def _parts_warfarin(patients: pl.DataFrame, source: str, target: str) -> Parts:
    prepared = _prepare(patients)
    domains = {race: prepared.filter(prepared["Race"] == _RACES[race]) for race in (source, target)}
    for race, rows in domains.items():
        if not len(rows):
            raise DataError(f"{_FILE} has no patients of domain {race!r} (Race = {_RACES[race]!r}) with a known dose")
    columns = Columns(context=(*_NUMERIC, *_CATEGORICAL), categorical=_CATEGORICAL, label="dose class")
    # The label column holds 0, 1, 2 so that its order is that of the doses; people read the names.
    arguments = {"source": domains[source], "target": domains[target], "columns": columns}
    return Parts(arguments, reader=from_table, class_names=_ARMS)


def _prepare(patients: pl.DataFrame) -> pl.DataFrame:
    wanted = ("Race", _DOSE, *_NUMERIC, *_CATEGORICAL)
    missing = [name for name in wanted if name not in patients.columns]
    if missing:
        raise DataError(f"{_FILE} has no column {missing[0]!r}; it is not the IWPC data set as PharmGKB gives it out")
    dose = pl.col(_DOSE).cast(pl.Float64, strict=False)
    decade = pl.col("Age").cast(pl.String).str.extract(r"^(\d+)").cast(pl.Float64)  # "60 - 69" and "90+"
    arm = pl.when(dose < _LOW).then(0).when(dose <= _HIGH).then(1).otherwise(2)
    return patients.filter(dose.is_not_null()).select(
        pl.col("Race"),
        arm.alias("dose class"),
        decade.alias("Age"),
        *(pl.col(name).cast(pl.Float64, strict=False) for name in _NUMERIC[1:]),
        *(pl.col(name).cast(pl.String).str.strip_chars() for name in _CATEGORICAL),
    )


def _made_up() -> pl.DataFrame:
    """Patients in the columns of the real file, with the same kind of gaps, for the tiny twin."""
    generator = np.random.default_rng(3)
    n = 600
    race = np.repeat(list(_RACES.values()), n // 4)
    decades, answers, genotypes = (
        np.array(values, dtype=object)
        for values in (["50 - 59", "60 - 69", "90+", None], ["0", "1", None], ["C/C", "C/T", None])
    )
    asian = race == "Asian"
    genotype = np.where(generator.random(n) < np.where(asian, 0.6, 0.3), "A/A", "G/G")
    weight = generator.normal(np.where(asian, 66.0, 80.0), 12.0)
    dose = 15.0 + 0.3 * (weight - 50.0) + np.where(genotype == "A/A", 0.0, 26.0) + generator.normal(0.0, 6.0, n)
    columns: dict[str, list[object]] = {
        "Race": list(race),
        _DOSE: [None if generator.random() < 0.03 else float(value) for value in dose],
        "Age": list(generator.choice(decades, size=n)),
        "Height (cm)": [None if generator.random() < 0.2 else float(value) for value in generator.normal(168, 9, n)],
        "Weight (kg)": [float(value) for value in weight],
        "Gender": list(generator.choice(["male", "female"], size=n)),
    }
    columns |= {name: list(generator.choice(answers, size=n)) for name in _YES_NO}
    columns |= {name: list(generator.choice(genotypes, size=n)) for name in _GENETIC}
    columns["VKORC1 -1639 consensus"] = list(genotype)
    return pl.DataFrame(columns)


declare(
    "warfarin",
    read=_read_warfarin,
    tiny=lambda *, source="white", target="asian": _parts_warfarin(_made_up(), source, target),
    **facts("warfarin"),
)


# Algorithm selection: which of 31 solvers is fastest on an instance? From hand-made to industrial, and back.


def _read_sat12(*, source: str = "hand", target: str = "indu") -> Parts:
    """Instances of one kind as source, of the other as target; 31 arms, and every arm's reward is known.

    The reward is 1 - log(1 + seconds) / log(1 + cutoff): 1 at once, 0 where the solver does not end in 1,200 seconds.
    Features count clauses and variables over many magnitudes: they are taken as sign(x) log(1 + abs(x)). Those of a
    probe that did not end are missing together: they become the median, and one column for each such group says so.

    Args:
        source: hand (538 hand-made instances) or indu (958 industrial ones).
        target: the other; half of its instances are seen in training, the other half is kept for the evaluator.
    """
    return _parts_sat12(*(_domain(domain) for domain in (source, target)))


def _tiny_sat12(*, source: str = "hand", target: str = "indu") -> Parts:
    generator = np.random.default_rng([len(source), len(target)])
    effects = generator.normal(size=(6, 31))
    made = []
    for place in (0.0, 0.4):
        x = generator.normal(place, 1.0, size=(124, 6))
        seconds = np.clip(np.exp(3.0 + x @ effects + generator.normal(0.0, 0.3, (124, 31))), 0.0, 1200.0)
        x[generator.random(124) < 0.1, 3:] = np.nan
        made.append((np.exp(2 * x), seconds, 1200.0, [f"feature {n}" for n in range(6)], [f"a{n}" for n in range(31)]))
    return _parts_sat12(*made)


def _domain(domain: str) -> tuple[Any, ...]:
    path = file_of("sat12", domain)
    x, seconds, cutoff, features, arms = load_packed(path, ("x", "seconds", "cutoff", "features", "arms"))
    if seconds.shape != (len(x), len(arms)) or x.shape[1] != len(features) or not (seconds >= 0).all():
        raise DataError(f"{path} should hold x (n, d) and seconds (n, K), got {x.shape} and {seconds.shape}")
    return x, seconds, cutoff, features, arms


def _parts_sat12(*domains: tuple[Any, ...]) -> Parts:
    arms = [str(arm) for arm in domains[0][4]]
    both = np.concatenate([x for x, *_ in domains]).astype(np.float64)
    groups, first = np.unique(np.isnan(both), axis=1, return_index=True)
    flags = [int(place) for group, place in zip(groups.T, first, strict=True) if group.any()]
    median = np.nanmedian(both, axis=0)
    frames = []
    for x, seconds, cutoff, features, _ in domains:
        filled = np.where(np.isnan(x), median, x)
        columns: dict[str, FloatArray] = dict(zip(map(str, features), (np.sign(filled) * np.log1p(np.abs(filled))).T))  # noqa: B905
        columns |= {f"{features[place]} is missing": np.isnan(x[:, place]).astype(np.float64) for place in flags}
        rewards = 1.0 - np.log1p(np.minimum(seconds, cutoff)) / np.log1p(cutoff)
        frames.append(pl.DataFrame(columns | dict(zip(arms, rewards.astype(np.float64).T, strict=True))))
    context = tuple(name for name in frames[0].columns if name not in arms)
    meaning = Columns(context=context, rewards=tuple(arms))
    return Parts({"source": frames[0], "target": frames[1], "columns": meaning}, reader=from_table)


declare("sat12", read=_read_sat12, tiny=_tiny_sat12, **facts("sat12"))
