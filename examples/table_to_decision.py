"""From CSV files, without labels of the new market, to a decision on one raw row."""

import numpy as np
import polars as pl

import daband


def write_csv(path: str, *, exchange_rate: float, labelled: bool) -> None:
    rng = np.random.default_rng(labelled)
    old, rich = rng.integers(0, 2, (2, 2000))
    age, income = 27 + 35 * old + rng.normal(0, 6, 2000), 20 + 40 * rich + rng.normal(0, 6, 2000)
    offer = np.where(old == rich, "loan", "card")  # depends on both age and income
    table = pl.DataFrame({"age": age, "income": exchange_rate * income, "offer": offer})
    table = table.with_columns(city=pl.Series(rng.choice(["north", "south"], 2000)))
    (table if labelled else table.drop("offer")).write_csv(path)


write_csv("here.csv", exchange_rate=1.0, labelled=True)
write_csv("new_market.csv", exchange_rate=3.0, labelled=False)
columns = daband.domains.Columns(context=("age", "income", "city"), categorical=("city",), label="offer")
pair = daband.domains.from_table(source="here.csv", target="new_market.csv", columns=columns, units=["income"])
policy = daband.DABand.for_pair(pair, recipe="small", seed=0)
daband.train(policy, source=pair.source, target=pair.target, episodes=26)
daband.export(policy, "market.daband", pair=pair, domain="target")
deployed = daband.load_deployed("market.daband")
for row in ({"age": 25, "income": 190.0, "city": "south"}, {"age": 64, "income": 180.0, "city": "nort"}):
    decision = deployed.decide(row)
    print(row, "->", decision.arm_name, *(warning.message for warning in decision.warnings))
