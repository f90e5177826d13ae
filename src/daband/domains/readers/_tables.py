"""Build pairs from tables and texts (``from_table``, ``from_texts``).

A table is a file (Parquet, CSV, ...) or a pandas, polars or arrow table.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from daband.base._arguments import check_class_names
from daband.base._arrays import AnyArray, FloatArray, IntArray
from daband.base._lazy_polars import pl
from daband.domains._contract import About, EvaluationDomain, Pair
from daband.domains._mixtures import read_all_domains
from daband.domains._splits import split_fraction, split_half
from daband.domains.readers._arrays import from_arrays
from daband.domains.readers._columns import (
    Columns,
    describe_missing_clusters,
    find_id_column,
    read_catalogue,
)
from daband.domains.readers._logs import (
    AUTO,
    AUTO_FRACTION,
    from_log,
    warn_estimated_propensities,
)
from daband.domains.readers._reading import (
    read_table,
    record_log_file,
)
from daband.domains.readers._rounds import (
    read_arms,
    read_rounds,
    require_distinct,
    require_numbers,
)
from daband.errors import DataError, InvalidInput
from daband.features._catalogue import Catalogue
from daband.features._costs import ArmCosts
from daband.features._shift import ShiftLike, as_shift
from daband.features._table_transform import (
    ROW_COLUMN,
    TableTransform,
    count_categories,
    format_value,
)
from daband.linear._propensities import estimate_propensities
from daband.rounds._rounds import Rounds


def from_table(
    *,
    source: Any,
    target: Any = None,
    domain: str | None = None,
    targets: Sequence[str] = (),
    target_test: Any = None,
    source_test: Any = "auto",
    columns: Columns,
    transform: TableTransform | None = None,
    feedback: str | None = None,
    class_names: Sequence[str] | None = None,
    arms: Any = None,
    shift: ShiftLike = None,
    units: Sequence[str] | None = None,
    name: str = "table",
) -> Pair:
    """Return a pair made from tables.

    Args:
        source: a path to a .parquet, .csv, .csv.gz, .tsv, .jsonl, .arrow or .feather file, or a
            pandas, polars or arrow table.
        target: the target table, in the same formats; training sees only its context columns. If it
            has no labels or rewards, the pair has no ``target_test``. If it has them and
            ``target_test`` is None, half of the rows, the same in every run, is kept for the
            evaluator.
        domain: the column that names the domain of a row, if ``source`` has the rows of several
            domains.
        targets: the values of ``domain`` that are targets; all others are sources. It cannot be
            given with ``target``.
        target_test: a table with the label or reward columns, for the evaluator.
        source_test: a table of source rounds that training does not use, or the fraction of
            ``source`` to hold out (a fixed split), or None. With "auto", it is a tenth, but for a
            log without ``arms`` nothing is held out, as in ``from_log``.
        columns: the names of the context, label, arm and reward columns.
        transform: a fitted transform of contexts; by default one is fitted on the source and target
            rows that training uses.
        feedback: "full" or "bandit", as in ``from_arrays``, for a table of labels or of the rewards
            of all arms; by default "full". The rows of a log, which has an arm column, are always
            bandit feedback.
        class_names: the arms in their order, by their names in the label or arm column, including
            arms that the source never chose; by default the sorted values of that column. With
            ``columns.rewards`` the arms are the reward columns.
        arms: a table of arms with features, so that a policy can choose an arm that the source
            never had. The first column, or the one named "id" or like the arm column, has the
            names; the others have numbers, categories, dates or lists of words. If the domains have
            different arms, a mapping {"source": table, "target": table}.
        shift: what may differ between the domains: "covariate", "units", "style", "labels", or
            several (see ``daband.features._shift``); by default "style" for images and "covariate" for
            vectors.
        units: the names of numeric context columns that are in other units in the target; implies
            ``shift="units"``.
        name: the pair's name in reports; random splits of source and target depend on it.

    ``pair.table`` is the fitted transform, which turns a raw row into a context.
    ``pair.feature_names`` has the names of the features of a context.

    >>> import polars as pl
    >>> old = pl.DataFrame({"age": [30, 50] * 20, "city": ["Oslo", "Rome"] * 20, "offer": [0, 1] * 20})
    >>> new = pl.DataFrame({"age": [35, 55] * 20, "city": ["Oslo", "Lima"] * 20})
    >>> columns = daband.domains.Columns(label="offer")
    >>> pair = daband.domains.from_table(source=old, target=new, columns=columns)
    >>> pair.n_arms, pair.table.contexts({"age": 41, "city": "Oslo"}).shape == (1, *pair.context_shape)
    (2, True)
    """
    if not isinstance(columns, Columns):
        raise InvalidInput(f"columns must be a daband.domains.Columns, got {columns!r}")
    if domain is not None or targets:
        if target is not None or target_test is not None:
            raise InvalidInput(
                "target and target_test cannot be given with domain, which splits the table source"
            )
        return _from_domains(
            read_table(source),
            domain,
            targets,
            name=name,
            columns=columns,
            transform=transform,
            feedback=feedback,
            class_names=class_names,
            arms=arms,
            shift=shift,
            units=units,
            source_test=source_test,
        )
    if columns.arm is not None and feedback == "full":
        raise InvalidInput(
            "feedback='full' needs the rewards of all arms, but the table is a log of the arms in"
            f" column {columns.arm!r}; use columns.label or columns.rewards, or omit feedback"
        )
    if target is None:
        raise InvalidInput("from_table needs a target, or domain= and targets= to split one table")
    source_frame = _add_row_numbers(read_table(source))
    target_frame = _add_row_numbers(read_table(target))
    if columns.weights is not None:
        raise InvalidInput("columns.weights is for fit_log; from_table counts each round once")
    if transform is None:
        columns = columns.with_types(source_frame, target_frame)
    else:
        columns = columns.with_context(transform.names)
    for text in describe_missing_clusters(source_frame, columns):
        warnings.warn(text, stacklevel=2)
    catalogue = None
    if arms is not None:
        if class_names is not None:
            raise InvalidInput("class_names cannot be given with arms, which has the names")
        catalogue = read_catalogue(arms, str(columns.arm or columns.label or ""))
    arm_names = (
        list(catalogue.names)
        if catalogue is not None
        else _list_arm_names(source_frame, columns, class_names)
    )
    costs = _find_costs(columns, arms, arm_names)
    outcome_columns = {columns.label} if columns.label else set(columns.rewards)
    test_frame = None if target_test is None else read_table(target_test)
    remedy = " Pass rows for the evaluator as target_test=" if test_frame is None else ""
    has_outcomes = bool(outcome_columns) and outcome_columns <= set(target_frame.columns)
    is_labelled = has_outcomes and _has_labels(target_frame, columns, remedy)
    if test_frame is None and is_labelled:
        training_rows, held_out_rows = split_half(
            _get_strata(target_frame, columns, "target"), name=name
        )
        test_frame = target_frame[held_out_rows]
        target_frame = target_frame[training_rows]
    if test_frame is not None and not outcome_columns:
        raise InvalidInput(
            "target_test needs columns.label or columns.rewards, the columns with the rewards of"
            " arms"
        )
    if isinstance(source_test, str) and source_test == AUTO:
        source_test = AUTO_FRACTION if columns.arm is None or arms is not None else None
    if source_test is None or isinstance(source_test, Real):
        fraction = None if source_test is None else float(source_test)
        strata = _get_strata(source_frame, columns, "source", columns.arm)
        training_rows, held_out_rows = split_fraction(strata, fraction=fraction, name=name)
        held_out_frame = None
        if len(held_out_rows):
            held_out_frame = source_frame[held_out_rows]
            source_frame = source_frame[training_rows]
    else:
        held_out_frame = read_table(source_test)
    frames = {
        "source": source_frame,
        "target": target_frame,
        "target_test": test_frame,
        "source_test": held_out_frame,
    }
    for table_name, frame in frames.items():
        if frame is not None and not len(frame):
            raise DataError(f"the {table_name} table has no rows")
    if all(
        column in target_frame and not target_frame[column].count() for column in columns.context
    ):
        raise DataError("the target table has no value in any context column")
    if transform is None:
        transform = TableTransform.fit(
            {"source": source_frame, "target": target_frame},
            context=columns.context,
            categorical=columns.categorical,
            dates=columns.dates,
            ids=columns.id,
            encoders=columns.encoders,
        )
    feature_names = transform.feature_names
    assumed_shift = as_shift(
        shift, context_shape=(len(feature_names),), units=units, feature_names=feature_names
    )
    # If the unit of a column differs between domains, its missing values are also filled with each
    # domain's median.
    is_separate = assumed_shift.mask_separate_columns(len(feature_names))
    source_transform = transform.with_medians(source_frame, is_separate)
    target_transform = transform.with_medians(target_frame, is_separate)
    _warn_disjoint_categories(source_frame, target_frame, columns)

    def read_outcomes(frame: pl.DataFrame, table_name: str) -> AnyArray:
        """Return the labels (n,) or net rewards (n, K) of all rows."""
        outcomes = _read_outcomes(frame, columns, arm_names, table_name)
        if costs is None:
            return outcomes
        rewards = outcomes if outcomes.ndim == 2 else np.eye(len(arm_names))[outcomes]
        return rewards - costs.compute_table(
            len(frame), lambda name: require_numbers(frame, name, table_name)
        )

    target_contexts = target_transform.apply(target_frame)
    test_data = None
    if test_frame is not None:
        test_data = (
            target_transform.apply(test_frame),
            read_outcomes(test_frame, "target_test"),
        )
    labelled_data = None
    if is_labelled:
        labelled_data = (
            target_contexts.copy(),
            read_outcomes(target_frame, "target"),
        )
    arguments: dict[str, Any] = {
        "target": target_contexts,
        "target_test": test_data,
        "target_labelled": labelled_data,
        "n_arms": len(arm_names),
        "class_names": arm_names,
        "name": name,
    }

    def read_source(frame: pl.DataFrame, table_name: str) -> Any:
        """Return contexts and outcomes, or the rounds of a log. ``table_name`` is for error
        messages.
        """
        if columns.arm is None:
            return source_transform.apply(frame), read_outcomes(frame, table_name)
        contexts = source_transform.apply(frame)
        return read_rounds(
            frame, columns, contexts, arm_names=arm_names, costs=costs, table_name=table_name
        )

    source_rounds: dict[str, Any] = {
        "source": read_source(source_frame, "source"),
        "source_test": None,
    }
    if held_out_frame is not None:
        source_rounds["source_test"] = read_source(held_out_frame, "source_test")
    if columns.arm is not None and columns.propensity is None:
        _add_propensities(source_rounds, len(arm_names))
    pair = (
        from_arrays(**source_rounds, **arguments, feedback=feedback or "full")
        if columns.arm is None
        else from_log(**source_rounds, **arguments)
    )
    if columns.arm is not None and isinstance(source, str | Path):
        record_log_file(pair.source, source)
    id_columns = [name for name in columns.id if name in target_frame.columns]
    target_only = [name for name in target_frame.columns if name not in source_frame.columns]
    frame_columns = dict.fromkeys([*id_columns, *columns.context, *target_only])
    pair.target.frame = target_frame.select(*frame_columns)
    in_both = [name for name in frame_columns if name in source_frame.columns]
    pair.source.frame = source_frame.select(in_both)
    if pair.source_test is not None and held_out_frame is not None:
        held_out = pair.source_test
        test_rows = held_out.domain if isinstance(held_out, EvaluationDomain) else held_out
        test_rows.frame = held_out_frame.select(in_both)
    pair.target.row_names = target_frame.select(id_columns or columns.context).to_dict(
        as_series=False
    )
    pair = replace(
        pair,
        about=About(summary="tables given by the user", licence="the user's own"),
        catalogue=catalogue,
        costs=None
        if costs is None
        else costs.with_means(
            lambda name: require_numbers(source_frame, name, "source"),
            source_rounds["source"].arms if columns.arm else None,
        ),
    )
    return replace(pair, feature_names=feature_names, table=target_transform, shift=assumed_shift)


def from_texts(
    *,
    source: Any,
    target: Any,
    encoder: Any,
    text: str = "text",
    label: str = "label",
    target_test: Any = None,
    source_test: Any = 0.1,
    **options: Any,
) -> Pair:
    """Return a pair made from texts, whose contexts are the features of a frozen encoder.

    Args:
        source: a tuple ``(texts, labels)``, or a table with these two columns.
        target: a list of texts, a tuple ``(texts, labels)``, or a table. If it has labels, half of
            the rows are kept for the evaluator.
        encoder: "words" (a feature for each of the 50 most frequent words),
            "sentence-transformers:NAME" or "sentence-transformers:FOLDER", or the path of a folder
            with model.onnx and tokenizer.json, whose features are kept in the cache folder.
        text: the column of the texts.
        label: the column of the labels, which are the arms.
        target_test: a tuple ``(texts, labels)`` or a table, for the evaluator.
        source_test: a tuple ``(texts, labels)`` or a table that training does not use, or the
            fraction of ``source`` to hold out.
        options: other options of ``from_table``: ``class_names``, ``shift``, ``name``,
            ...

    ``pair.table.contexts({"text": "where is my parcel?"})`` returns the features of a text. The
    file of an exported policy contains the encoder, and ``decide`` takes texts. For tables that
    have texts among other columns, use ``from_table`` with ``Columns(encoders={"review":
    encoder})``.
    """
    tables = {
        "source": source,
        "target": target,
        "target_test": target_test,
        "source_test": source_test,
    }
    for table_name, texts in tables.items():
        if isinstance(texts, tuple) and len(texts) == 2 and not isinstance(texts[1], str):
            tables[table_name] = pl.DataFrame(
                {text: list(texts[0]), label: list(texts[1])}, strict=False
            )
        elif isinstance(texts, list | tuple):
            tables[table_name] = pl.DataFrame({text: list(texts)})
    columns = Columns(context=(text,), label=label, encoders={text: encoder})
    return from_table(**tables, columns=columns, **{"name": "texts", **options})


def _from_domains(
    frame: pl.DataFrame,
    domain: str | None,
    targets: Sequence[str],
    *,
    name: str,
    columns: Columns,
    **options: Any,
) -> Pair:
    """Return the pair of a table whose column ``domain`` names the domain of each row.

    ``targets`` are the values of target rows; the other arguments are as in ``from_table``.
    """
    if domain is None or not targets or isinstance(targets, str):
        raise InvalidInput(
            'domain and a list of targets must be given together: domain="country", targets=["pl"]'
        )
    if domain in columns.context:
        raise InvalidInput(
            f"columns.context has {domain!r}, which names the domain: no policy may see it"
        )
    values, codes = require_distinct(frame, domain)
    domain_of_row = np.array([str(value) for value in values])[codes]
    domains = sorted({str(value) for value in values})
    target_names = [str(target) for target in targets]
    unknown_target = next((target for target in target_names if target not in domains), None)
    if unknown_target is not None:
        raise InvalidInput(
            f"targets has {unknown_target!r}, which is not in column {domain!r}"
            f" ({', '.join(domains)})"
        )
    source_names = [domain_name for domain_name in domains if domain_name not in target_names]
    if not source_names:
        raise InvalidInput(f"every value of {domain!r} is a target; at least one must be a source")
    is_target = np.isin(domain_of_row, target_names)
    options |= {"columns": columns, "name": name}
    pooled_pair = from_table(
        source=frame.filter(~is_target), target=frame.filter(is_target), **options
    )
    # if only some targets have labels, none are used
    if columns.label is not None and pooled_pair.target_test is None:
        source_labels = pl.when(pl.Series(is_target)).then(None).otherwise(pl.col(columns.label))
        frame = frame.with_columns(source_labels.alias(columns.label))
    if columns.rewards == () and options["arms"] is None:
        options["class_names"] = pooled_pair.class_names
    frames_by_role = {
        f"{role}s": {
            domain_name: frame.filter(domain_of_row == domain_name) for domain_name in names
        }
        for role, names in (("source", source_names), ("target", target_names))
    }
    arguments = {"source": None, "target": None, **frames_by_role, **options}
    return read_all_domains(
        from_table, {**arguments, "transform": pooled_pair.table}, mapped_fields=()
    )


def _find_costs(columns: Columns, arms: Any, arm_names: Sequence[str]) -> ArmCosts | None:
    """Return the costs of arms; those in a column of the table ``arms`` are fixed."""
    costs = columns.costs
    if not isinstance(costs, str):
        return ArmCosts.parse(costs, arm_names)
    costs_by_arm: dict[str, float | str] = dict.fromkeys(arm_names, costs)
    is_table = arms is not None and not isinstance(arms, Catalogue | np.ndarray)
    tables = arms.values() if isinstance(arms, dict) else [arms] if is_table else []
    for frame in map(read_table, tables):
        if costs in frame.columns:
            ids = frame[find_id_column(frame, str(columns.arm or columns.label or ""))].to_list()
            arm_costs = require_numbers(frame, costs, "arms").tolist()
            costs_by_arm |= dict(zip(map(_format_name, ids), arm_costs, strict=True))
    return ArmCosts.parse(costs_by_arm, arm_names)


def _add_row_numbers(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame with a column of row numbers, so that errors name the right row after rows
    are dropped.
    """
    return frame if ROW_COLUMN in frame.columns else frame.with_row_index(ROW_COLUMN)


def _list_arm_names(
    source: pl.DataFrame, columns: Columns, class_names: Sequence[str] | None
) -> list[str]:
    """Return the arm names: ``class_names``, or the reward columns, or the sorted values of the arm
    or label column.
    """
    if isinstance(class_names, str):
        raise InvalidInput(f"class_names must be a sequence of names, got the text {class_names!r}")
    if class_names is not None and columns.rewards:
        raise InvalidInput(
            "class_names cannot be given with columns.rewards, whose names are the arm names"
        )
    if class_names is not None:
        return list(
            check_class_names(
                [_format_name(name) for name in class_names], max(2, len(class_names))
            )
        )
    return list(columns.rewards) or _list_sorted_names(
        require_distinct(source, str(columns.arm or columns.label))[0]
    )


def _list_sorted_names(values: list[Any]) -> list[str]:
    """Return the names of the distinct values, sorted by value if they can be compared, else by
    name.
    """
    try:
        return [_format_name(value) for value in sorted(set(values))]
    except TypeError:
        return sorted({_format_name(value) for value in values})


def _format_name(value: Any) -> str:
    """Return the name of an arm or domain. 1.0 becomes "1", because integer columns with gaps are
    read as floats.
    """
    return format_value(value) if isinstance(value, float) else str(value)


def _get_strata(
    frame: pl.DataFrame, columns: Columns, table_name: str, arm_column: str | None = None
) -> IntArray:
    """Return the stratum of every row for a split, (n,): its value in ``arm_column``, or its label,
    or its best arm.
    """
    name = arm_column or columns.label
    if name is None:
        return np.asarray(_read_reward_table(frame, columns, table_name).argmax(axis=1))
    values, codes = require_distinct(frame, name)
    return np.unique([str(value) for value in values], return_inverse=True)[1][codes]


def _has_labels(target: pl.DataFrame, columns: Columns, remedy: str) -> bool:
    """Return True if all target rows have a label.

    Warn if only some have one; the warning ends with ``remedy``.
    """
    n_missing = 0 if columns.label is None else target[columns.label].null_count()
    if 0 < n_missing < len(target):
        warnings.warn(
            f"{n_missing:,} of {len(target):,} target rows have no {columns.label}, so the labels"
            f" of the others are not used.{remedy}",
            stacklevel=3,
        )
    return n_missing == 0


def _read_outcomes(
    frame: pl.DataFrame, columns: Columns, arm_names: Sequence[str], table_name: str
) -> AnyArray:
    """Return the labels (n,) or rewards (n, K) of all rows. ``table_name`` is for error
    messages.
    """
    if columns.rewards:
        reward_table = _read_reward_table(frame, columns, table_name)
        if list(columns.rewards) == list(arm_names):
            return reward_table
        named_arms = pl.DataFrame({"arms": columns.rewards})
        indices = read_arms(named_arms, "arms", arm_names, "columns.rewards")
        # Arms without a column have the smallest reward of the row.
        rewards = np.repeat(reward_table.min(axis=1, keepdims=True), len(arm_names), axis=1)
        rewards[:, indices] = reward_table
        return rewards
    assert columns.label is not None
    return read_arms(frame, columns.label, arm_names, table_name)


def _read_reward_table(frame: pl.DataFrame, columns: Columns, table_name: str) -> FloatArray:
    """Return the rewards in the reward columns, (n, K)."""
    return np.stack([require_numbers(frame, name, table_name) for name in columns.rewards], axis=1)


def _add_propensities(rounds_by_table: dict[str, Rounds | None], n_arms: int) -> None:
    """Add propensities to logs. They are estimated from all rounds, training and held-out."""
    logs = {name: log for name, log in rounds_by_table.items() if log is not None}
    joined = Rounds.join(list(logs.values()))
    propensities, method = estimate_propensities(
        joined.contexts, joined.arms, n_arms, joined.offered
    )
    warn_estimated_propensities(method, stacklevel=4)
    for name, log in logs.items():
        rounds_by_table[name] = replace(log, propensities=propensities[: len(log)])
        propensities = propensities[len(log) :]


def _warn_disjoint_categories(source: pl.DataFrame, target: pl.DataFrame, columns: Columns) -> None:
    """Warn about categorical columns in which no category occurs in both domains.

    They are uninformative.
    """
    for name in columns.categorical:
        source_categories, target_categories = (
            count_categories(rows, name).keys() - {None} for rows in (source, target)
        )
        if source_categories and target_categories and not source_categories & target_categories:
            examples = (
                f"{min(map(str, source_categories))!r} and {min(map(str, target_categories))!r}"
            )
            warnings.warn(
                f"column {name!r} has no category that both source and target have ({examples}), so"
                " it is uninformative about the target. Use the same spelling in both, or drop the"
                " column",
                stacklevel=3,
            )
