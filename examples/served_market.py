"""
From CSV files to a running service, and a week of traffic
==========================================================

**The policy is trained. How do web servers use it, how are rewards collected, and how do I see
whether it works?**

.. image:: images/sphx_glr_served_market_001.png
   :alt: mean reward of the week's days, and the assessment

The input is two CSV files: offers with their rewards in the old market, and customers of the new
market. We train and export a policy, start ``daband serve``, send a week of customers with rewards
that arrive late or never, and look at the result. A day takes a few seconds here. The customers are
simulated: this is an illustration, not evidence."""

# %%
# Two files
# ---------
#
# In the old market every customer saw one random offer, and bought or not. In the new market
# customers are older, and there are no rewards yet.

import os
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import httpx
import matplotlib.pyplot as plt  # pip install matplotlib
import numpy as np
import polars as pl

import daband
from daband.service import export_events

rng = np.random.default_rng(0)
OFFERS = ["card", "loan", "savings"]


def draw_customers(n: int, mean_age: float) -> pl.DataFrame:
    """Return n customers with this mean age."""
    return pl.DataFrame(
        {
            "age": rng.normal(mean_age, 9.0, n).round(1),
            "visits": rng.poisson(4.0, n),
            "city": rng.choice(["Oslo", "Bergen", "Tromso"], n),
        }
    )


def compute_accept_probability(row: dict, offer: str, *, loan_change: float = 0.0) -> float:
    """Return the probability that a customer accepts an offer."""
    age = row["age"] - 25
    by_offer = {
        "card": 0.75 - 0.012 * age,
        "loan": 0.45 + loan_change,
        "savings": 0.1 + 0.012 * age,
    }
    return float(np.clip(by_offer[offer] + 0.02 * (row["visits"] - 4), 0.02, 0.98))


folder = Path(tempfile.mkdtemp())
old_customers = draw_customers(4000, 38.0)
offer_indices = rng.integers(len(OFFERS), size=len(old_customers))
purchases = [
    float(rng.random() < compute_accept_probability(row, OFFERS[arm]))
    for row, arm in zip(old_customers.to_dicts(), offer_indices, strict=True)
]
log = old_customers.with_columns(
    offer=pl.Series([OFFERS[arm] for arm in offer_indices]),
    bought=pl.Series(purchases),
    p=pl.lit(1 / 3),
)
log.write_csv(folder / "old_market.csv")
draw_customers(2000, 52.0).write_csv(folder / "new_market.csv")

# %%
# Train and export
# ----------------
#
# With ``epsilon=0.1`` one decision in ten is a random offer, and every decision has a propensity.
# So the log can be used to evaluate other policies. To save time, this page does not estimate an
# assessment with ``daband.assess``: the value 0.55 in the file is made up.

columns = daband.domains.Columns(
    context=["age", "visits", "city"],
    categorical=["city"],
    arm="offer",
    reward="bought",
    propensity="p",
)
pair = daband.domains.from_table(
    source=folder / "old_market.csv", target=folder / "new_market.csv", columns=columns
)
policy = daband.LinUCB.for_pair(pair, seed=0, alpha=0.05, epsilon=0.1)
daband.train(policy, source=pair.source, target=pair.target, episodes=50)
policy.save(folder / "policy.safetensors")
assessment = {"value": 0.55}
daband.export(policy, folder / "market.daband", pair=pair, domain="target", assessment=assessment)
print(daband.load_deployed(folder / "market.daband"))

# %%
# Start the service
# -----------------
#
# In a shell: ``daband serve market.daband --learn policy.safetensors --wait 86400 --incumbent
# loan``. The incumbent is what the new market offered everybody until now. A wait of eight seconds
# represents a day.

with socket.socket() as any_port:
    any_port.bind(("127.0.0.1", 0))
    port = any_port.getsockname()[1]
address = f"http://127.0.0.1:{port}"
service = subprocess.Popen(  # noqa: S603 - our own command
    [
        sys.executable,
        "-m",
        "daband",
        "serve",
        folder / "market.daband",
        "--log",
        f"sqlite:///{folder}/events.db",
        "--learn",
        folder / "policy.safetensors",
        "--learn-every",
        "50",
        "--wait",
        "8",
        "--incumbent",
        "loan",
        "--port",
        str(port),
    ],
    env={**os.environ, "DABAND_DECIDE_TOKEN": "d-secret", "DABAND_REWARD_TOKEN": "r-secret"},
    stdout=subprocess.DEVNULL,
)

# %%
# A week of customers
# -------------------
#
# Customers arrive in batches. A quarter of the purchases is reported a day late. A customer who
# does not buy has no reward, and gets the default reward of 0 after the wait. A reward that arrives
# after the wait is rejected. From the sixth day on, customers buy fewer loans.

client = httpx.Client(
    base_url=address, timeout=60, transport=httpx.HTTPTransport(retries=8)
)  # retries: until the service listens


def decide(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Return the service's decisions on rows."""
    events = [{"event_id": uuid.uuid4().hex, "context": row} for row in rows]
    headers = {"Authorization": "Bearer d-secret"}
    response = client.post("/decide", json={"events": events}, headers=headers)
    return response.raise_for_status().json()["events"]


def report_reward(event_id: str) -> httpx.Response:
    """Report that the customer of an event bought."""
    headers = {"Authorization": "Bearer r-secret"}
    return client.post(f"/events/{event_id}/reward", json={"reward": 1.0}, headers=headers)


late_ids: list[str] = []
for day in range(7):
    overdue_ids = late_ids
    late_ids = []
    n_bought = 0
    loan_change = -0.2 if day >= 5 else 0.0
    arriving_customers = draw_customers(200, 52.0).to_dicts()
    for start in range(0, len(arriving_customers), 50):
        rows = arriving_customers[start : start + 50]
        for row, decision in zip(rows, decide(rows), strict=True):
            if rng.random() >= compute_accept_probability(
                row, decision["arm_name"], loan_change=loan_change
            ):
                continue
            n_bought += 1
            if rng.random() < 0.25:
                late_ids.append(decision["event_id"])
            else:
                report_reward(decision["event_id"]).raise_for_status()
    for event_id in overdue_ids:  # of the day before
        report_reward(event_id)  # rejected if it is later than --wait
    print(
        f"day {day + 1}: {n_bought / len(arriving_customers):.2f} bought,"
        f" model {decision['model']}"
        " decides"
    )
    time.sleep(1.0)

# %%
# The numbers of the service
# --------------------------
#
# The page at ``/`` shows these numbers, and Prometheus can read them at ``/metrics``. In the
# meantime a second process of the service, the worker, has set default rewards, learned, and
# published models. (In its first minute it sets no default rewards.)

time.sleep(9)
metric_names = (
    "daband_events ",
    "daband_rewards ",
    "daband_join_rate",
    "daband_played_value",
    "daband_other_value",
)
for line in httpx.get(f"{address}/metrics").text.splitlines():
    if line.startswith(metric_names):
        print(line)
models = httpx.get(f"{address}/models").json()["models"]
print(f"{len(models)} models; the newest has learned {models[0]['rounds']:,} rounds")
assert len(models) > 1

# %%
# Use the log
# -----------
#
# The log is exported to a Parquet file, which can be used to evaluate policies and to train the
# next one.

client.close()
service.send_signal(2)
service.wait()
n_events = export_events(f"sqlite:///{folder}/events.db", folder / "week.parquet", ids=True)
week = pl.read_parquet(folder / "week.parquet")
print(f"{n_events:,} events with a reward")
export_events(f"sqlite:///{folder}/events.db", folder / "rounds.parquet")
for name, rule in (("as it was exported", None), ("greedy", "greedy")):
    estimate = daband.evaluate_log(
        daband.load(folder / "policy.safetensors"), folder / "rounds.parquet", rule=rule
    )
    print(f"{name:20} {estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]")

figure, axes = plt.subplots(figsize=(7, 3))
blocks = week.sort("time").with_row_index().with_columns(block=pl.col("index") // 150)
curve = blocks.group_by("block", maintain_order=True).agg(pl.col("reward").mean())
axes.plot(curve["block"] * 150, curve["reward"], marker="o", label="the service, as played")
axes.axhline(assessment["value"], ls="--", color="#b3261e", label="value in the file (made up)")
axes.set(xlabel="events of the week", ylabel="mean reward", ylim=(0, 1))
axes.legend(frameon=False, fontsize=8)
plt.show()
