"""Write the simulated data of `daband example` into the package.

    python packaging/make_examples.py

ab-test: three offers were drawn at random in Norway. Customers below 45 often buy with a coupon,
older ones after a visit, and a letter is worse for both. Customers in Sweden are older, and respond
in the same way.

labels: two banks have the same customers, except that those in Malmö are older, and their incomes
are in kronor. A tenth of the labels are random.

images: drawings of four shapes, and such shapes in colours before uneven backgrounds.
"""

import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import polars as pl

FOLDER = Path(__file__).parents[1] / "src" / "daband" / "domains" / "examples"
OFFERS = ("coupon", "letter", "visit")
PROPENSITIES = np.array([0.25, 0.5, 0.25])
COSTS = np.array([1.0, 0.5, 2.0])  # euros, if the customer buys
MEAN_LOG_AMOUNT, DEVIATION_LOG_AMOUNT = 3.5, 0.7
EXCHANGE_RATE = 11.0  # Swedish kronor per euro
SHAPES = ("circle", "cross", "square", "triangle")
SIDE = 48  # pixels


def write_ab_test(folder: Path) -> None:
    generator = np.random.default_rng(0)

    def draw_customers(n: int, mean_age: float, first_id: int) -> pl.DataFrame:
        return pl.DataFrame(
            {
                "customer": np.arange(first_id, first_id + n),
                "age": generator.normal(mean_age, 12, n).clip(18, 90).round().astype(int),
                "spent": generator.lognormal(4, 1, n).round(2),
                "channel": generator.choice(["web", "shop", "phone"], n),
            }
        )

    def draw_rewards(customers: pl.DataFrame) -> np.ndarray:
        """Return the reward of every offer for each customer: the amount minus the cost."""
        n = len(customers)
        probabilities = compute_buy_probabilities(customers["age"].to_numpy())
        amounts = generator.lognormal(MEAN_LOG_AMOUNT, DEVIATION_LOG_AMOUNT, (n, 1)) - COSTS
        return np.round((generator.random((n, 1)) < probabilities) * amounts, 2)

    norway = draw_customers(8000, 45, 1)
    sweden = draw_customers(3000, 52, 20_001)
    week = draw_customers(1000, 52, 30_001)
    offers = generator.choice(3, len(norway), p=PROPENSITIES)
    norway.with_columns(
        offer=pl.Series([OFFERS[offer] for offer in offers]),
        euros=pl.Series(draw_rewards(norway)[np.arange(len(norway)), offers]),
        p=pl.Series(PROPENSITIES[offers]),
    ).write_csv(folder / "norway.csv")
    sweden.write_csv(folder / "sweden.csv")
    week.rename({"customer": "decision"}).write_csv(folder / "week1.csv")
    catalogue = {"id": OFFERS, "price": COSTS, "kind": ["mail", "mail", "person"]}
    pl.DataFrame(catalogue).write_csv(folder / "offers.csv")
    customers = pl.concat([sweden, week])
    rewards = pl.DataFrame(draw_rewards(customers), schema=list(OFFERS), orient="row")
    rewards.insert_column(0, customers["customer"]).write_csv(folder / "rewards.csv")


def compute_buy_probabilities(ages: np.ndarray) -> np.ndarray:
    """Return the probability that each customer buys with each offer, (n, 3)."""
    is_young = ages < 45
    columns = [np.where(is_young, 0.20, 0.05), np.full(len(ages), 0.07)]
    return np.stack([*columns, np.where(is_young, 0.06, 0.17)], axis=1)


def write_labels(folder: Path) -> None:
    generator = np.random.default_rng(0)
    for bank, n, mean_age, rate in (("berlin", 1500, 40, 1.0), ("malmo", 1000, 50, EXCHANGE_RATE)):
        age = generator.normal(mean_age, 12, n).clip(18, 90).round()
        income = generator.lognormal(10.5, 0.5, n)
        home = generator.choice(["owned", "rented"], n)
        owner_product = np.where(age > 55, "fund", np.where(income < 36_000, "card", "loan"))
        tenant_product = np.where(income < 50_000, "card", "fund")
        product = np.where(home == "owned", owner_product, tenant_product)
        random_product = generator.choice(["card", "fund", "loan"], n)
        pl.DataFrame(
            {
                "customer": np.arange(1, n + 1),
                "age": age.astype(int),
                "income": (income * rate).round().astype(int),
                "home": home,
                "product": np.where(generator.random(n) < 0.1, random_product, product),
            }
        ).write_csv(folder / f"{bank}.csv")


def write_images(folder: Path) -> None:
    generator = np.random.default_rng(0)
    files = {}
    for shape in SHAPES:
        for number in range(40):
            drawing = np.where(draw_shape(generator, shape), 30, 255) * np.ones(3)
            files[f"rendered/{shape}/{number}.png"] = encode_png(drawing)
        for number in range(25):
            coarse = generator.uniform(60, 200, (4, 4, 3)).round()
            background = np.kron(coarse, np.ones((SIDE // 4, SIDE // 4, 1)))
            colour = np.where(generator.random(3) < 0.5, 20.0, 240.0)
            picture = np.where(draw_shape(generator, shape), colour, background)
            files[f"photos/{shape}-{number}.png"] = encode_png(picture)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, image in files.items():
            archive.writestr(zipfile.ZipInfo(name), image)
    (folder / "images.zip").write_bytes(content.getvalue())


def draw_shape(generator: np.random.Generator, shape: str) -> np.ndarray:
    """Return the pixels of a shape with a random centre, size and slight rotation, (H, W, 1)."""
    size = generator.uniform(11, 17)
    x, y = np.meshgrid(np.arange(SIDE), np.arange(SIDE)) - generator.uniform(20, 28, (2, 1, 1))
    angle = generator.uniform(-0.2, 0.2)
    u = (np.cos(angle) * x + np.sin(angle) * y) / size
    v = (np.cos(angle) * y - np.sin(angle) * x) / size
    inside = {
        "circle": u**2 + v**2 < 1,
        "cross": (np.minimum(abs(u), abs(v)) < 0.3) & (np.maximum(abs(u), abs(v)) < 1),
        "square": np.maximum(abs(u), abs(v)) < 0.85,
        "triangle": (v < 0.8) & (v > 2 * abs(u) - 1),
    }
    return inside[shape][..., None]


def encode_png(pixels: np.ndarray) -> bytes:
    """Return pixels (H, W, 3) between 0 and 255 as a PNG file."""
    rows = pixels.astype(np.uint8).reshape(SIDE, -1)
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    content = zlib.compress(np.insert(rows, 0, 0, axis=1).tobytes(), 9)
    chunks = [(b"IHDR", header), (b"IDAT", content), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


if __name__ == "__main__":
    write_ab_test(FOLDER / "ab-test")
    write_labels(FOLDER / "labels")
    write_images(FOLDER / "images")
