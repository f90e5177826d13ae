"""From CSV files, without labels of the new market, to a decision on one raw row."""

import numpy as np
import polars as pl

import daband


def write_csv(path: str, *, exchange_rate: float, with_offers: bool) -> None:
    rng = np.random.default_rng(with_offers)
    is_old, is_rich = rng.integers(0, 2, (2, 2000))
    age = 27 + 35 * is_old + rng.normal(0, 6, 2000)
    income = 20 + 40 * is_rich + rng.normal(0, 6, 2000)
    offers = np.where(is_old == is_rich, "loan", "card")  # depends on both age and income
    table = pl.DataFrame({"age": age, "income": exchange_rate * income, "offer": offers})
    table = table.with_columns(city=pl.Series(rng.choice(["north", "south"], 2000)))
    (table if with_offers else table.drop("offer")).write_csv(path)


write_csv("here.csv", exchange_rate=1.0, with_offers=True)
write_csv("new_market.csv", exchange_rate=3.0, with_offers=False)
columns = daband.domains.Columns(
    context=("age", "income", "city"), categorical=("city",), label="offer"
)
pair = daband.domains.from_table(
    source="here.csv", target="new_market.csv", columns=columns, units=["income"]
)
policy = daband.DABand.for_pair(pair, recipe="small", seed=0)
daband.train(policy, source=pair.source, target=pair.target, episodes=26)
daband.export(policy, "market.daband", pair=pair, domain="target")
deployed = daband.load_deployed("market.daband")
for row in (
    {"age": 25, "income": 190.0, "city": "south"},
    {"age": 64, "income": 180.0, "city": "nort"},
):
    decision = deployed.decide(row)
    print(row, "->", decision.arm_name, *(warning.message for warning in decision.warnings))
