"""From CSV files, without one label of the new market, to a decision on one raw row."""

import numpy as np
import polars as pl

import daband


def write_csv(path: str, *, exchange_rate: float, labelled: bool) -> None:
    rng = np.random.default_rng(labelled)
    kind = rng.integers(0, 3, 1500)  # students, employees, pensioners
    age, income = np.choose(kind, [22, 42, 71]) + rng.normal(0, 5, 1500), np.choose(kind, [12, 60, 35])
    table = pl.DataFrame({"age": age, "income": exchange_rate * (income + rng.normal(0, 5, 1500))})
    city, offer = rng.choice(["north", "south"], 1500), np.choose(kind, ["loan", "card", "travel"])
    table = table.with_columns(city=pl.Series(city), offer=pl.Series(offer))
    (table if labelled else table.drop("offer")).write_csv(path)


write_csv("here.csv", exchange_rate=1.0, labelled=True)
write_csv("new_market.csv", exchange_rate=3.0, labelled=False)
columns = daband.domains.Columns(context=("age", "income", "city"), categorical=("city",), label="offer")
pair = daband.domains.from_table(source="here.csv", target="new_market.csv", columns=columns)
policy = daband.DABand.for_pair(pair, recipe="small", seed=0)
daband.train(policy, source=pair.source, target=pair.target, episodes=20)
daband.export(policy, "market.daband", pair=pair, domain="target")
deployed = daband.load_deployed("market.daband")
for row in ({"age": 45, "income": 190.0, "city": "south"}, {"age": 20, "income": 30.0, "city": "nort"}):
    decision = deployed.decide(row)
    print(row, "->", decision.arm_name, *(warning.message for warning in decision.warnings))
