"""Compare methods on 1,280 features of a pretrained network: photographs, traffic signs, emoji, and
line drawings.

    python benchmarks/pretrained.py --encode runs/features       # once: EfficientNet-Lite0 of signs and emoji
    python benchmarks/pretrained.py --features runs/features --workers 2 --record benchmarks/records/pretrained.json

A record has the accuracy of greedy choices on the target's test half, which training does not see,
without any target reward. A seed draws the held-out tenth of the source, the target's halves and
the policy's exploration. Lines are the edges of the same images.
"""

from __future__ import annotations

import argparse
import io
import json
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from machine import commit

import daband
from daband.domains._registry import get_data_directory
from daband.policies import policies
from daband.policies._pair_defaults import choose_transform
from daband.training._candidates import choose_training_budget

OFFICE = ("amazon", "dslr", "webcam")
DRAWN = (
    "signs_synthetic",
    "signs_real",
    "signs_lines",
    "google",
    "facebook",
    "twitter",
    "twitter_lines",
)
#: Pairs on which settings of self-training were chosen; the others were used only to report.
DEVELOPMENT = ("amazon-dslr", "dslr-webcam", "webcam-amazon", "signs_synthetic-signs_real")
PAIRS = [
    *(f"{a}-{b}" for a, b in permutations(OFFICE, 2)),
    "signs_synthetic-signs_real",
    "signs_real-signs_synthetic",
    "signs_real-signs_lines",
    "signs_lines-signs_real",
    "google-facebook",
    "facebook-google",
    "google-twitter",
    "google-twitter_lines",
    "facebook-twitter_lines",
    "twitter_lines-google",
]
#: By method: its policy, the components of its transform, and settings of the policy.
METHODS: dict[str, tuple[str, int | None, dict[str, Any]]] = {
    "linucb": ("linucb", None, {}),
    "linucb, large ridge": ("linucb", None, {"ridge": 80.0}),
    "self-training": ("self-training", 512, {}),
}
#: Images of each domain, at most.
MOST = 1500


def _paths(name: str) -> list[tuple[Path, int, str]]:
    """Return path, label and group of each image; images of one group stay on one side of the
    target's split.
    """
    from research_sets.readers import _EMOJI_GROUPS, _get_motif

    if name.startswith("signs"):
        files = sorted(
            (get_data_directory() / "signs" / name.removeprefix("signs_")).glob("*/*.png")
        )
        return [
            (file, int(file.parent.name), file.parent.name + file.stem.split("_")[0])
            for file in files
        ]
    root = get_data_directory() / "node_modules" / f"emoji-datasource-{name}"
    listed = [
        emoji
        for emoji in json.loads((root / "emoji.json").read_text())
        if emoji["category"] in _EMOJI_GROUPS
    ]
    return [
        (
            root / "img" / name / "64" / emoji["image"],
            _EMOJI_GROUPS.index(emoji["category"]),
            _get_motif(emoji["unified"]),
        )
        for emoji in listed
        if emoji[f"has_img_{name}"]
    ]


def _lines(path: Path) -> bytes:
    """Return an image with the strongest eighth of the edges, dark on white, as a PNG file."""
    from PIL import Image, ImageFilter

    image = Image.open(path).convert("RGBA").resize((224, 224))
    on_white = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("L")
    edges = np.array(
        on_white.filter(ImageFilter.GaussianBlur(1.5)).filter(ImageFilter.FIND_EDGES), float
    )
    edges[[0, 1, -2, -1]] = edges[:, [0, 1, -2, -1]] = 0.0
    drawn = Image.fromarray(
        np.where(edges > max(np.quantile(edges, 0.88), 6.0), 0, 255).astype(np.uint8)
    )
    drawn.filter(ImageFilter.GaussianBlur(0.7)).save(content := io.BytesIO(), "PNG")
    return content.getvalue()


def encode(folder: Path) -> None:
    """Write the features of a seeded sample of each domain: x, y and the group g."""
    from daband.features._input_encoders import as_input_encoder

    folder.mkdir(parents=True, exist_ok=True)
    encoder = as_input_encoder("efficientnet_lite0")
    for name in DRAWN:
        found = _paths(name.replace("signs_lines", "signs_real").removesuffix("_lines"))
        rows = np.sort(np.random.default_rng(0).permutation(len(found))[:MOST])
        paths, labels, groups = zip(*(found[row] for row in rows), strict=True)
        values = (
            [_lines(path) for path in paths] if name.endswith("_lines") else list(map(str, paths))
        )
        x = encoder.encode_column(values, lambda row: f"image {row}").astype(np.float16)
        np.savez_compressed(folder / f"{name}.npz", x=x, y=np.array(labels), g=np.array(groups))
        print(name, x.shape, flush=True)


def load(folder: Path | None, name: str, seed: int) -> Any:
    """Return a pair: all of the source, and the target in halves that have no group in common."""
    rng = np.random.default_rng(seed)
    parts = []
    for domain in name.split("-"):
        path = get_data_directory() / "office31_features" if domain in OFFICE else folder
        assert path is not None, "--features is needed for signs and emoji"
        with np.load(path / f"{domain}.npz") as file:
            halves = ("",) if "x" in file else ("_train", "_test")
            x, y = (np.concatenate([file[one + half] for half in halves]) for one in "xy")
            group = (
                np.unique(file["g"], return_inverse=True)[1] if "g" in file else np.arange(len(y))
            )
        parts.append((x.astype(np.float32), y, group))
    (x, y, _), (xt, yt, group) = parts
    order = rng.permutation(len(y))
    test = rng.permutation(group.max() + 1)[group] % 2 == 1
    return daband.domains.from_arrays(
        source=(x[order], y[order]),
        source_test=0.1,
        target=xt[~test],
        target_test=(xt[test], yt[test]),
        n_arms=int(max(y.max(), yt.max())) + 1,
        name=name,
    )


def run(folder: Path | None, job: tuple[str, str, int]) -> dict[str, Any]:
    """Train one policy as ``choose`` does, and return its accuracy in the target."""
    name, method, seed = job
    pair = load(folder, name, seed)
    episodes, length = choose_training_budget(pair, None, 64)
    policy_name, components, settings = METHODS[method]
    policy_class = policies.get(policy_name)
    transform = choose_transform(policy_class, pair, max_components=components)
    policy = policy_class.for_pair(pair, seed=seed, transform=transform, **settings)
    done = daband.train(
        policy,
        source=pair.source,
        target=pair.target,
        episodes=episodes,
        episode_length=length,
    )
    accuracy = daband.evaluate(policy, pair.target_test, rule="greedy").accuracy
    row = {"pair": name, "method": method, "seed": seed, "accuracy": round(float(accuracy), 4)}
    return {**row, "development": name in DEVELOPMENT, "seconds": round(done.seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--encode", type=Path, help="folder for features")
    parser.add_argument("--features", type=Path, help="folder that --encode wrote")
    parser.add_argument("--pairs", nargs="+", default=PAIRS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    if args.encode is not None:
        encode(args.encode)
        return
    jobs = [
        (pair, method, seed) for seed in args.seeds for pair in args.pairs for method in METHODS
    ]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(args.workers) as pool:
        for row in pool.map(partial(run, args.features), jobs):
            rows.append({**row, "commit": commit()})
            print(json.dumps(row), flush=True)
            if args.record is not None:
                kept = sorted(
                    rows, key=lambda row: (PAIRS.index(row["pair"]), row["method"], row["seed"])
                )
                args.record.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
