"""Warfarin: which of three doses does a patient need? Learned on one population, applied to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from daband.domains.contract import About
from daband.domains.data_paths import need
from daband.domains.datasets.builder import Parts, by_hand, declare, ordered
from daband.domains.readers.columns import Columns
from daband.domains.readers.tables import from_table, read_table
from daband.errors import DataError

if TYPE_CHECKING:
    import polars as pl

__all__: list[str] = []

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
_HOW = "get the IWPC data set from https://www.pharmgkb.org/downloads and save its first sheet as CSV"


def _read(*, source: str = "white", target: str = "asian") -> Parts:
    """Patients of one population as source, of another as target; 3 arms.

    The arm that pays 1 is the class of the therapeutic dose: low (under 21 mg a week), medium (21 to 49) or high.
    Patients without a known dose are left out. Contexts are age (by decade), height and weight, centred and scaled,
    each with a flag where missing; gender, diseases, drugs and genotypes one-hot, with missing as a category.
    ``Race`` defines the domain and is not part of the context, nor is anything that is known only after dosing.

    Args:
        source: white, asian, black or unknown.
        target: another of them; half of its patients are seen in training, the other half is kept for the evaluator.
    """
    return _parts(read_table(need([_FILE], pair="warfarin")), source, target)


def _parts(patients: pl.DataFrame, source: str, target: str) -> Parts:
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
    read=_read,
    tiny=lambda *, source="white", target="asian": _parts(_made_up(), source, target),
    name="warfarin/{source}-{target}",
    summary="warfarin dose, {source} to {target} patients",
    choices={"source": tuple(_RACES), "target": tuple(_RACES)},
    variants=ordered(("white", "asian", "black")),  # patients of unknown race are no population: ask for them by name
    resources=[by_hand("IWPC warfarin data", _FILE, "CC BY-SA 4.0, PharmGKB's terms", _HOW)],
)
