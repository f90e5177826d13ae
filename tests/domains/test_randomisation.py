"""Logs whose arms were not drawn for each row."""

import numpy as np
import polars as pl
import pytest

import daband
from daband.domains import Columns, from_log, from_table

COLUMNS = Columns(context=["age"], arm="arm", reward="reward", propensity="p", id=["customer"])


def visits(n_customers, per_customer, *, per_row=False, seed=0):
    """Return a log of several visits per customer, with arms drawn per customer or per row."""
    rng = np.random.default_rng(seed)
    customer = np.repeat(np.arange(n_customers), per_customer)
    n = len(customer)
    arms = rng.integers(0, 2, n if per_row else n_customers)
    return pl.DataFrame(
        {
            "age": rng.normal(size=n),
            "arm": arms if per_row else arms[customer],
            "reward": rng.random(n),
            "p": np.full(n, 0.5),
            "customer": customer,
        }
    ).sample(fraction=1.0, shuffle=True, seed=seed)


def rounds_of(frame):
    return (
        frame.select("age").to_numpy(),
        *(frame[name].to_numpy() for name in ("arm", "reward", "p")),
    )


@pytest.mark.parametrize("form", ["arrays", "table", "file"])
def test_propensities_of_1_with_several_arms_are_an_error(form, tmp_path):
    """Such a log gave the verdict *deploy*."""
    log = visits(200, 1).with_columns(p=pl.lit(1.0))
    target = np.zeros((9, 1))
    log.drop("customer").rename({"p": "propensity"}).write_parquet(tmp_path / "log.parquet")
    read = {
        "arrays": lambda: from_log(source=rounds_of(log), target=target, n_arms=2),
        "table": lambda: from_table(source=log, target=log, columns=COLUMNS),
        "file": lambda: from_log(source=tmp_path / "log.parquet", target=target, n_arms=2),
    }
    with pytest.raises(daband.InvalidInput, match=r"propensities are 1 .*If arms were not random"):
        read[form]()
    one_arm = log.with_columns(arm=pl.lit(0))
    from_log(source=rounds_of(one_arm), target=target, n_arms=2)
    with pytest.warns(UserWarning, match="they are estimated"):
        from_log(source=rounds_of(log)[:3], target=target, n_arms=2)
