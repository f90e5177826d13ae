"""Logs whose arms were not drawn for each row: propensities of 1, and arms drawn per customer."""

import warnings

import numpy as np
import polars as pl
import pytest

import daband
from daband.domains import Columns, ParquetLog, from_log, from_table

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


def test_a_table_with_arms_drawn_per_customer_gives_a_warning():
    log = visits(100, 2)
    with pytest.warns(UserWarning, match="100 .*'customer'.*--cluster customer"):
        from_table(source=log, target=log, columns=COLUMNS)
    once = log.unique("customer")
    again = visits(100, 3, per_row=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_table(source=once, target=once, columns=COLUMNS)
        from_table(source=again, target=again, columns=COLUMNS)


def test_arms_drawn_per_row_give_no_warning_by_chance():
    """The limit of three standard deviations is exceeded in one of 700 logs."""
    n_warnings = 0
    for seed in range(60):
        log = visits(40, 3, per_row=True, seed=seed)
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            from_table(source=log, target=log, columns=COLUMNS)
        n_warnings += len(raised)
    assert n_warnings <= 1


def test_a_few_customers_with_another_arm_do_not_hide_the_others():
    log = visits(100, 2)
    arms = log["arm"].to_numpy().copy()
    arms[:5] = 1 - arms[:5]
    with pytest.warns(UserWarning, match="'customer'"):
        from_table(source=log.with_columns(arm=arms), target=log, columns=COLUMNS)


def test_log_files_with_arms_drawn_per_customer_give_a_warning(tmp_path):
    path = tmp_path / "log.parquet"
    visits(100, 2).write_parquet(path)
    log = ParquetLog(path, n_arms=2, columns=COLUMNS)
    policy = daband.LinUCB(context_shape=(1,), n_arms=2)
    with pytest.warns(UserWarning, match="'customer'"):
        from_log(source=log, target=np.zeros((9, 1)), n_arms=2)
    with pytest.warns(UserWarning, match="'customer'"):
        daband.fit_log(policy, log)
    other = daband.LinUCB(context_shape=(1,), n_arms=2)
    with pytest.warns(UserWarning, match="'customer'"):
        daband.learn_log(other, path, propensity="p", id="customer")
    fresh = daband.LinUCB(context_shape=(1,), n_arms=2)
    frame = visits(100, 2)
    for rounds, ids in ((log, "customer"), (rounds_of(frame), frame["customer"].to_numpy())):
        estimate = daband.evaluate_log(fresh, rounds, id=ids)
        assert any("standard errors are too small" in text for text in estimate.warnings)


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
    with pytest.raises(daband.InvalidInput, match=r"propensities .*1 .*\(--drop COLUMN\)"):
        read[form]()
    one_arm = log.with_columns(arm=pl.lit(0))
    from_log(source=rounds_of(one_arm), target=target, n_arms=2)
    with pytest.warns(UserWarning, match="propensities.*frequency"):
        from_log(source=rounds_of(log)[:3], target=target, n_arms=2)
