"""Declare the research data sets: published features, rendered and photographed objects, drawings,
and tables.

Each section of this module reads the files of one data set, and declares it by ``declare``. The
sections do not depend on each other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import starmap
from typing import NamedTuple

import numpy as np

from daband.base._arrays import AnyArray, FloatArray, IntArray
from daband.base._lazy_polars import pl
from daband.domains._registry import require_data
from daband.domains.datasets._catalogue import load_splits
from daband.domains.datasets._digits import SIDE, Digits, read_mnist
from daband.domains.readers._columns import Columns
from daband.domains.readers._images import ImageContexts, ImageList, scan_classes
from daband.domains.readers._reading import read_table
from daband.domains.readers._tables import from_table
from daband.errors import DataError
from research_sets import builder
from research_sets.builder import (
    PairData,
    declare,
    find_data_file,
    load_catalogue,
    split_target,
)

# Amazon reviews: is a review positive? From one kind of product to another.


def _read_amazon(*, source: str = "books", target: str = "dvd") -> PairData:
    """Read reviews of one kind of product as source and of another as target: contexts (400,), 2
    arms.

    Args:
        source: books, dvd, elec or kitchen, each with about 2,000 reviews.
        target: another of them; training sees half of its reviews, the other half is kept for the
            evaluator.
    """
    source_data, target_data = (
        builder.load_matlab(find_data_file("amazon", domain), first_label=0)
        for domain in (source, target)
    )
    return PairData(
        {"source": source_data, **split_target(*target_data, name=f"amazon/{source}-{target}")}
    )


declare("amazon", read=_read_amazon)


# Office-31 as features of a pretrained network: 31 kinds of office objects, photographed by a shop,
# camera or webcam.


def _read_office31(*, source: str = "amazon", target: str = "webcam") -> PairData:
    """Read photographs of one kind as source and of another as target: contexts (1280,) of float32,
    31 arms.

    Features come from a network that was trained on ImageNet. The file of a domain has two halves.
    The source is both halves. Training sees one half of the target without labels, and the
    evaluator gets the other.

    Args:
        source: amazon (2,817 photographs), dslr (498) or webcam (795).
        target: another of them.
    """
    first_half, second_half = _load_office31_halves(source)
    source_contexts, source_labels = (
        np.concatenate(arrays) for arrays in zip(first_half, second_half, strict=True)
    )
    training_half, test_half = _load_office31_halves(target)
    target_arguments = {
        "target": training_half[0],
        "target_labelled": training_half,
        "target_test": test_half,
    }
    return PairData({"source": (source_contexts, source_labels), **target_arguments})


def _load_office31_halves(domain: str) -> list[tuple[AnyArray, IntArray]]:
    """Return the contexts and labels of both halves of a domain."""
    path = find_data_file("office31_features", domain)
    return [(contexts.astype(np.float32), labels) for contexts, labels in load_splits(path)]


declare("office31_features", read=_read_office31)


# Office-Caltech: ten kinds of objects in four collections of images, as counts of visual words
# (SURF).


def _read_office_caltech(*, source: str = "amazon", target: str = "webcam") -> PairData:
    """Read one collection as source and another as target: contexts (800,) of unit norm, 10 arms.

    Contexts are the square roots of the visual word frequencies of each image. They depend only on
    that image. Standardising each domain by its own statistics, as is usual, would already be a
    part of the adaptation.

    Args:
        source: amazon, caltech10 (1,123 images), dslr (157) or webcam.
        target: another of them; training sees half of its images, the other half is kept for the
            evaluator.
    """
    paths = (find_data_file("office_caltech", domain) for domain in (source, target))
    source_data, target_data = (
        _normalise_counts(*builder.load_matlab(path, first_label=1)) for path in paths
    )
    return PairData(
        {
            "source": source_data,
            **split_target(*target_data, name=f"office_caltech/{source}-{target}"),
        }
    )


def _normalise_counts(counts: FloatArray, labels: IntArray) -> tuple[FloatArray, IntArray]:
    """Return the square roots of relative frequencies from ``counts`` (n, 800), and the labels
    unchanged.
    """
    totals = counts.sum(axis=1, keepdims=True)
    return np.sqrt(counts / np.where(totals > 0, totals, 1.0)), labels


declare("office_caltech", read=_read_office_caltech)


# Traffic signs: rendered to photographed, 43 kinds.


#: The folder of each class, "00" to "42".
_SIGNS_FOLDERS = tuple(f"{number:02d}" for number in range(43))


def _read_signs(*, side: int = 32) -> PairData:
    """Read rendered signs as source and photographs as target: contexts (3, side, side) of uint8,
    43 arms.

    Photographs of one sign, taken while driving towards it, are almost equal, so they stay in one
    half of the split.

    Args:
        side: pixels per side.
    """
    rendered_images, photographs = (
        scan_classes(require_data([f"signs/{folder}"], pair="signs"), _SIGNS_FOLDERS)
        for folder in ("synthetic", "real")
    )
    tracks = [f"{path.parent.name}/{path.stem.partition('_')[0]}" for path in photographs.paths]
    target_arguments = split_target(*_read_images(photographs, side), name="signs", groups=tracks)
    return PairData({"source": _read_images(rendered_images, side), **target_arguments})


def _read_images(images: ImageList, side: int) -> tuple[AnyArray, IntArray]:
    """Read images (n, 3, side, side) into memory. Return them and their labels (n,)."""
    contexts = ImageContexts(images.paths, (side, side))
    return contexts.read(np.arange(len(contexts))), images.labels


declare("signs", read=_read_signs)


# Emoji: one vendor's drawings to another's, nine Unicode groups.


#: Names of the Unicode groups, which are the classes.
_EMOJI_GROUPS: tuple[str, ...] = tuple(load_catalogue()["emoji"]["class_names"])
#: Unicode characters that modify an emoji: joiner, presentation, female, male, direction, and four
#: hair styles.
_EMOJI_MODIFIERS = {"200D", "FE0F", "2640", "2642", "27A1", "1F9B0", "1F9B1", "1F9B2", "1F9B3"}
#: The neutral form of each gendered emoji: the adult for man and woman, the child for boy and girl.
_NEUTRAL_EMOJIS = {"1F468": "1F9D1", "1F469": "1F9D1", "1F466": "1F9D2", "1F467": "1F9D2"}


def _read_emoji(*, source: str = "google", target: str = "twitter", side: int = 32) -> PairData:
    """Read one vendor's drawings as source and another's as target: contexts (3, side, side) of
    uint8, 9 arms.

    The arm is the emoji's Unicode group. Skin tones are not read. If a vendor has identical images,
    only the first is used. Forms of one emoji (man, woman and person running) are either all in
    training or all in the test.

    Args:
        source: google, twitter or facebook, each with about 1,900 emoji.
        target: another of them; training sees half of its emoji, the other half is kept for the
            evaluator.
        side: pixels per side; files have 64.
    """
    (*source_data, _), (contexts, labels, motifs) = (
        _read_vendor(vendor, side) for vendor in (source, target)
    )
    target_arguments = split_target(
        contexts, labels, name=f"emoji/{source}-{target}", groups=motifs
    )
    return PairData({"source": tuple(source_data), **target_arguments})


def _read_vendor(vendor: str, side: int) -> tuple[AnyArray, IntArray, list[str]]:
    """Return contexts (n, 3, side, side), labels (n,) and motifs of a vendor's emoji.

    Forms of one emoji have the same motif (``_get_motif``).
    """
    root = find_data_file("emoji", vendor)
    try:
        all_emojis = json.loads((root / "emoji.json").read_text(encoding="utf-8"))
        emojis = [
            emoji
            for emoji in all_emojis
            if emoji["category"] in _EMOJI_GROUPS and emoji[f"has_img_{vendor}"]
        ]
        paths = tuple(root / "img" / vendor / "64" / emoji["image"] for emoji in emojis)
        codes = [emoji["unified"] for emoji in emojis]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{root} is not the npm package emoji-datasource-{vendor} ({error!r})"
        ) from None
    labels = np.array([_EMOJI_GROUPS.index(emoji["category"]) for emoji in emojis], np.int64)
    contexts, labels = _read_images(ImageList(paths, labels), side)
    distinct_rows = np.sort(
        np.unique(contexts.reshape(len(contexts), -1), axis=0, return_index=True)[1]
    )
    return (
        contexts[distinct_rows],
        labels[distinct_rows],
        [_get_motif(codes[row]) for row in distinct_rows],
    )


def _get_motif(unified_code: str) -> str:
    """Return the code points of an emoji, such as "1F9D1-1F3C3", without modifiers and in neutral
    form.
    """
    code_points = [
        _NEUTRAL_EMOJIS.get(code, code)
        for code in unified_code.split("-")
        if code not in _EMOJI_MODIFIERS
    ]
    return "-".join(code_points) or unified_code


declare("emoji", read=_read_emoji)


# Natural tables: 26 real tables, each split into two domains by one of its columns (region, sex,
# year, store).
#
# On most of them a source policy is as good in the target as one trained there, so adaptation
# cannot gain anything. In earnings-years, computers-trend and salary-country the meaning of the
# arms changed (prices, wages, currencies).


def _read_natural(*, table: str = "wages-region") -> PairData:
    """Read one table.

    Strings are categories, missing values are filled and flagged, and arms are quantiles.

    Training sees half of the target rows, the same in every run; the evaluator gets the others.

    Args:
        table: the name of the table.
    """
    path = find_data_file("natural_tables", table, pair=f"natural_tables/{table}")
    frame = read_table(path)
    missing_name = next((name for name in ("domain", "arm") if name not in frame.columns), None)
    if missing_name is not None:
        raise DataError(
            f"{path} has no column {missing_name!r}; `daband data check natural_tables` describes"
            " the file"
        )
    return _build_natural_data(frame)


def _build_natural_data(frame: pl.DataFrame) -> PairData:
    """Return the data of a pair from a table with the columns ``domain`` and ``arm``."""
    context_columns = tuple(name for name in frame.columns if name not in ("domain", "arm"))
    text_columns = tuple(name for name in context_columns if frame[name].dtype == pl.String)
    columns = Columns(context=context_columns, categorical=text_columns, label="arm")
    source, target = (frame.filter(pl.col("domain") == domain) for domain in ("source", "target"))
    return PairData({"source": source, "target": target, "columns": columns}, reader=from_table)


declare("natural_tables", read=_read_natural)


# Warfarin: which of three doses does a patient need? From one population to another.


#: Path of the file below the data directory.
_WARFARIN_FILE = "warfarin/warfarin.csv"
#: Value of the column ``Race`` for each domain.
_RACES: dict[str, str] = load_catalogue()["warfarin"]["members"]
#: Names of the arms.
_DOSE_CLASSES = ("low", "medium", "high")
#: Column with the dose in mg per week.
_DOSE_COLUMN = "Therapeutic Dose of Warfarin"
#: Smallest medium dose, in mg per week.
_MIN_MEDIUM_DOSE = 21.0
#: Largest medium dose, in mg per week.
_MAX_MEDIUM_DOSE = 49.0
#: Names of the columns with numbers, with answers (1 or 0), and with genotypes.
_NUMBER_COLUMNS, _ANSWER_COLUMNS, _GENOTYPE_COLUMNS = map(
    tuple, load_catalogue()["warfarin"]["columns"].values()
)
#: Columns that are one-hot encoded.
_CATEGORY_COLUMNS = ("Gender", *_ANSWER_COLUMNS, *_GENOTYPE_COLUMNS)


def _read_warfarin(*, source: str = "white", target: str = "asian", tiny: bool = False) -> PairData:
    """Read patients of one population as source and of another as target; 3 arms.

    The arm with reward 1 is the class of the therapeutic dose: low (under 21 mg a week), medium (21
    to 49) or high. Patients without a known dose are dropped. Contexts have age (by decade), height
    and weight, standardised, each with a flag for missing values. Gender, diseases, drugs and
    genotypes are one-hot, with missing as a category. ``Race`` defines the domain and is not part
    of the context. Columns that are known only after dosing are not used.

    Args:
        source: white, asian, black or unknown.
        target: another of them; training sees half of its patients, the other half is kept for the
            evaluator.
        tiny: True for 600 synthetic patients, whose doses have no medical meaning.
    """
    patients = _prepare_patients(
        _generate_patients() if tiny else read_table(find_data_file("warfarin"))
    )
    patients_by_race = {
        race: patients.filter(patients["Race"] == _RACES[race]) for race in (source, target)
    }
    for race, race_patients in patients_by_race.items():
        if not len(race_patients):
            raise DataError(
                f"{_WARFARIN_FILE} has no patients with a known dose and Race = {_RACES[race]!r}"
            )
    columns = Columns(
        context=(*_NUMBER_COLUMNS, *_CATEGORY_COLUMNS),
        categorical=_CATEGORY_COLUMNS,
        label="dose class",
    )
    # The label column has 0, 1, 2, so that its order is the order of the doses; reports show the
    # names.
    arguments = {
        "source": patients_by_race[source],
        "target": patients_by_race[target],
        "columns": columns,
    }
    return PairData(arguments, reader=from_table, class_names=_DOSE_CLASSES)


def _prepare_patients(patients: pl.DataFrame) -> pl.DataFrame:
    """Return the columns that are used, for the patients with a known dose."""
    required_columns = ("Race", _DOSE_COLUMN, *_NUMBER_COLUMNS, *_CATEGORY_COLUMNS)
    missing_columns = [name for name in required_columns if name not in patients.columns]
    if missing_columns:
        raise DataError(
            f"{_WARFARIN_FILE} has no column {missing_columns[0]!r}; it is not PharmGKB's IWPC"
            " data set"
        )
    dose = pl.col(_DOSE_COLUMN).cast(pl.Float64, strict=False)
    # "60 - 69" and "90+"
    age_decade = pl.col("Age").cast(pl.String).str.extract(r"^(\d+)").cast(pl.Float64)
    dose_class = (
        pl.when(dose < _MIN_MEDIUM_DOSE).then(0).when(dose <= _MAX_MEDIUM_DOSE).then(1).otherwise(2)
    )
    return patients.filter(dose.is_not_null()).select(
        pl.col("Race"),
        dose_class.alias("dose class"),
        age_decade.alias("Age"),
        *(pl.col(name).cast(pl.Float64, strict=False) for name in _NUMBER_COLUMNS[1:]),
        *(pl.col(name).cast(pl.String).str.strip_chars() for name in _CATEGORY_COLUMNS),
    )


def _generate_patients() -> pl.DataFrame:
    """Return synthetic patients with the columns of the real file and similar missing values."""
    generator = np.random.default_rng(3)
    n = 600
    races = np.repeat(list(_RACES.values()), n // 4)
    decade_options, answer_options, genotype_options = (
        np.array(options, dtype=object)
        for options in (["50 - 59", "60 - 69", "90+", None], ["0", "1", None], ["C/C", "C/T", None])
    )
    is_asian = races == "Asian"
    genotypes = np.where(generator.random(n) < np.where(is_asian, 0.6, 0.3), "A/A", "G/G")
    weights = generator.normal(np.where(is_asian, 66.0, 80.0), 12.0)
    doses = (
        15.0
        + 0.3 * (weights - 50.0)
        + np.where(genotypes == "A/A", 0.0, 26.0)
        + generator.normal(0.0, 6.0, n)
    )
    columns: dict[str, list[object]] = {
        "Race": list(races),
        _DOSE_COLUMN: [None if generator.random() < 0.03 else float(value) for value in doses],
        "Age": list(generator.choice(decade_options, size=n)),
        "Height (cm)": [
            None if generator.random() < 0.2 else float(value)
            for value in generator.normal(168, 9, n)
        ],
        "Weight (kg)": [float(value) for value in weights],
        "Gender": list(generator.choice(["male", "female"], size=n)),
    }
    columns |= {name: list(generator.choice(answer_options, size=n)) for name in _ANSWER_COLUMNS}
    columns |= {
        name: list(generator.choice(genotype_options, size=n)) for name in _GENOTYPE_COLUMNS
    }
    columns["VKORC1 -1639 consensus"] = list(genotypes)
    return pl.DataFrame(columns)


declare("warfarin", read=_read_warfarin)


# SAT12, algorithm selection: which of 31 solvers is fastest on an instance? From hand-made to
# industrial, or back.


class _SolverRuns(NamedTuple):
    """Run times of solvers on the instances of a domain."""

    #: Features of the instances, (n, d), with NaN for a missing value.
    features: FloatArray
    #: Run time of each solver on each instance, (n, K).
    seconds: FloatArray
    #: Maximum run time in seconds.
    cutoff: FloatArray
    #: Names of the features, (d,).
    feature_names: AnyArray
    #: Names of the solvers, which are the arms, (K,).
    solver_names: AnyArray


def _read_sat12(*, source: str = "hand", target: str = "indu") -> PairData:
    """Read instances of one kind as source and of the other as target; 31 arms, and every arm's
    reward is known.

    The reward is 1 - log(1 + seconds) / log(1 + cutoff), with a cutoff of 1,200 seconds. Features
    are counts of very different magnitudes, so they are transformed to sign(x) log(1 + abs(x)).
    Some groups of features are missing together. They are replaced by medians, with one more column
    per group that flags them.

    Args:
        source: hand (538 hand-made instances) or indu (958 industrial ones).
        target: the other; training sees half of its instances, the other half is kept for the
            evaluator.
    """
    return _build_sat12_data([_read_solver_runs(domain) for domain in (source, target)])


def _read_solver_runs(domain: str) -> _SolverRuns:
    """Return the runs of all solvers on the instances of a domain."""
    path = find_data_file("sat12", domain)
    return _SolverRuns(*builder.load_arrays(path, ("x", "seconds", "cutoff", "features", "arms")))


def _build_sat12_data(domains: Sequence[_SolverRuns]) -> PairData:
    """Return the data of a pair from the runs in its source and its target."""
    arms = [str(name) for name in domains[0].solver_names]
    all_features = np.concatenate([runs.features for runs in domains]).astype(np.float64)
    # Columns with missing values in the same rows form a group.
    missing_patterns, first_columns = np.unique(np.isnan(all_features), axis=1, return_index=True)
    flag_columns = first_columns[missing_patterns.any(axis=0)]
    medians = np.nanmedian(all_features, axis=0)
    frames = []
    for runs in domains:
        is_missing = np.isnan(runs.features)
        names = [str(name) for name in runs.feature_names]
        filled_features = np.where(is_missing, medians, runs.features)
        contexts = np.sign(filled_features) * np.log1p(np.abs(filled_features))
        columns: dict[str, FloatArray] = dict(zip(names, contexts.T, strict=True))
        columns |= {
            f"{names[index]} is missing": is_missing[:, index].astype(np.float64)
            for index in flag_columns
        }
        rewards = 1.0 - np.log1p(np.minimum(runs.seconds, runs.cutoff)) / np.log1p(runs.cutoff)
        frames.append(
            pl.DataFrame(columns | dict(zip(arms, rewards.astype(np.float64).T, strict=True)))
        )
    context_columns = tuple(name for name in frames[0].columns if name not in arms)
    reader_columns = Columns(context=context_columns, rewards=tuple(arms))
    return PairData(
        {"source": frames[0], "target": frames[1], "columns": reader_columns}, reader=from_table
    )


declare("sat12", read=_read_sat12)


# Handwritten digits: from one of MNIST, USPS and Semeion to another.


def _read_handwritten(*, source: str = "mnist", target: str = "usps") -> PairData:
    """Read digits of one collection as source and of another as target: contexts (1, 28, 28) of
    uint8, 10 arms.

    Semeion's 16x16 digits are interpolated. MNIST and USPS keep their split: training sees the
    training part, and the evaluator gets the target's test part. Semeion has no split, so half of
    every class is held out if it is the target.

    Args:
        source: mnist (60,000), usps (7,291) or semeion (1,593); the digits of its training part are
            used.
        target: another of them.
    """
    source_data = _read_collection(source)[0]
    training, test = _read_collection(target)
    if test is None:
        return PairData(
            {
                "source": source_data,
                **split_target(*training, name=f"handwritten/{source}-{target}"),
            }
        )
    return PairData(
        {
            "source": source_data,
            "target": training.images,
            "target_labelled": training,
            "target_test": test,
        }
    )


def _read_collection(collection: str) -> tuple[Digits, Digits | None]:
    """Return images (n, 1, 28, 28) and labels (n,) of the training part and of the test part, which
    may be None.
    """
    if collection == "mnist":
        training, test = (read_mnist(split, pair="handwritten") for split in ("train", "t10k"))
    else:
        path = find_data_file("handwritten", collection)
        if collection == "semeion":
            images, labels = builder.load_arrays(path, ("x", "y"))
            return Digits(_interpolate(images)[:, None], labels.astype(np.int64)), None
        training, test = starmap(Digits, load_splits(path))
    return Digits(training.images[:, None], training.labels), Digits(
        test.images[:, None], test.labels
    )


def _interpolate(images: AnyArray) -> AnyArray:
    """Return images (n, s, s) of uint8, resized to (n, 28, 28) by bilinear interpolation between
    pixel centres.

    The arithmetic uses integers, so that every processor computes the same digits.
    """
    old_side = images.shape[1]
    # The centre of pixel i of 28 is at (i + 1/2) old_side / 28 - 1/2, here in units of 1/56 of a
    # pixel.
    positions = np.clip((2 * np.arange(SIDE) + 1) * old_side - SIDE, 0, 2 * SIDE * (old_side - 1))
    lower_pixels = np.minimum(positions // (2 * SIDE), old_side - 2)
    upper_weights = positions - 2 * SIDE * lower_pixels
    weights = np.zeros((SIDE, old_side), dtype=np.int64)
    weights[np.arange(SIDE), lower_pixels] = 2 * SIDE - upper_weights
    weights[np.arange(SIDE), lower_pixels + 1] = upper_weights
    weighted_sums = np.einsum(
        "ri,nij,cj->nrc", weights, images.astype(np.int64), weights, optimize=True
    )
    weight_sum = (2 * SIDE) ** 2
    return ((weighted_sums + weight_sum // 2) // weight_sum).astype(np.uint8)


declare("handwritten", read=_read_handwritten)
