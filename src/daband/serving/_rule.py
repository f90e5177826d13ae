"""Write a decision tree as SQL, as a JSON tree, as conditions of GrowthBook, and as text.

All have the same arms for the same row:

* A missing value (NULL, null, or an absent key) is on the side on which the policy's table puts it,
  which replaces missing numbers by the median. The condition says so: ``age < 40 or age is
  missing``.
* A text is compared as it is stored: a space or another case makes another category. A category
  that is a number or a boolean is compared with its usual texts. 1 and 0 are true and false.
* A date is compared as a date or as a text in ISO format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from daband.errors import InvalidInput
from daband.serving._numpy_networks import TreeNetwork, make_empty_trees

#: The spaces by which a line of text is indented.
_INDENT = "    "


@dataclass(frozen=True)
class Split:
    """A condition on a column, and the nodes for rows for which it is true or false."""

    #: The name of the column.
    column: str
    #: "below" (a number less than ``value``), "before" (a date before ``value``) or "equals" (a
    #: category).
    kind: str
    #: The number, the date in ISO format, or the category.
    value: float | str
    #: True if the condition is true for a missing value.
    or_missing: bool
    #: The index of the feature that decides, and its threshold. The condition is true if the
    #: feature is below it, or for "equals" if it is not below.
    feature: int
    threshold: float
    yes: Node
    no: Node

    @property
    def forms(self) -> list[Any]:
        """The values of a raw table that are the category ``value``."""
        text = str(self.value)
        if text in ("true", "false"):  # many tables have 1 and 0
            bit = int(text == "true")
            return [text, text.capitalize(), text.upper(), f"{bit}", f"{bit}.0", bit == 1, bit]
        if _is_number(text):
            number = float(text)
            is_whole = number.is_integer()
            return [text, f"{text}.0", int(number)] if is_whole else [text, number]
        return [text]


#: A split, or the index of a leaf.
Node: TypeAlias = Split | int


def _is_number(text: str) -> bool:
    """Return True if a category was made from a number."""
    try:
        number = float(text)
    except ValueError:
        return False
    return text == (str(int(number)) if number.is_integer() else repr(number))


def to_state(node: Node) -> Any:
    """Return a tree in JSON types: a mapping with the fields of a split, or the index of a leaf."""
    if isinstance(node, int):
        return node
    return {**vars(node), "yes": to_state(node.yes), "no": to_state(node.no)}


def from_state(state: Any) -> Node:
    """Return the tree that ``to_state`` returned."""
    if isinstance(state, int):
        return state
    return Split(**{**state, "yes": from_state(state["yes"]), "no": from_state(state["no"])})


def count_leaves(node: Node) -> int:
    """Return the number of leaves of a tree."""
    return 1 if isinstance(node, int) else count_leaves(node.yes) + count_leaves(node.no)


def list_paths(node: Node, path: str = "") -> list[str]:
    """Return the conditions of each leaf as text, in the order of the leaves."""
    if isinstance(node, int):
        return [path or "everyone"]
    prefix = f"{path} and " if path else ""
    condition = describe_condition(node)
    if node.or_missing:
        condition = f"({condition})"
    return [
        *list_paths(node.yes, prefix + condition),
        *list_paths(node.no, f"{prefix}not {condition}"),
    ]


def describe_condition(split: Split) -> str:
    """Return a condition as text, such as ``age < 40``."""
    operator = "=" if split.kind == "equals" else "<"
    text = f"{split.column} {operator} {_format(split.value)}"
    return f"{text} or {split.column} is missing" if split.or_missing else text


def build_leaf_network(node: Node, n_inputs: int) -> TreeNetwork:
    """Return a network with a feature per leaf, which is 1 for the contexts of the leaf."""
    n_leaves = count_leaves(node)
    features = [0]
    thresholds = [0.0]
    children = [(0, 0)]
    values = [np.zeros(n_leaves)]

    def add(node: Node) -> int:
        index = len(features)
        features.append(0)
        thresholds.append(0.0)
        children.append((index, index))
        values.append(np.zeros(n_leaves))
        if isinstance(node, int):
            values[index][node] = 1.0
            return index
        # a network goes to the second child if the feature is above the threshold
        features[index] = node.feature
        thresholds[index] = float(np.nextafter(node.threshold, -np.inf))
        sides = (node.no, node.yes) if node.kind == "equals" else (node.yes, node.no)
        children[index] = add(sides[0]), add(sides[1])
        return index

    root = add(node)
    arrays = make_empty_trees(n_leaves) | {
        "feature": np.array(features, np.int64),
        "threshold": np.array(thresholds),
        "children": np.array(children, np.int64).T,
        "value": np.array(values),
        "roots": np.array([[root]], np.int64),
        "base": np.zeros(n_leaves),
        "depth": np.array([max(1, measure_depth(node))], np.int64),
    }
    return TreeNetwork({"kind": "trees", "inputs": n_inputs}, arrays)


def measure_depth(node: Node) -> int:
    """Return the maximum number of conditions on the way to a leaf."""
    return 0 if isinstance(node, int) else 1 + max(map(measure_depth, (node.yes, node.no)))


@dataclass(frozen=True)
class Rule:
    """A decision tree with an arm per leaf, which can be written in several languages."""

    #: The tree.
    node: Node
    #: The arm of each leaf.
    leaf_arms: tuple[str, ...]

    def to_sql(self, table: str | None = None) -> str:
        """Return a ``CASE`` expression, or with a table a query that adds the columns arm and
        propensity.

        It runs in DuckDB, SQLite, Postgres and others.
        """
        case = _write_sql_case(self.node, self.leaf_arms, "")
        if table is None:
            return case
        return f"SELECT *, {case} AS arm, 1.0 AS propensity\nFROM {_name(table)}"

    def to_json(self) -> Any:
        """Return the tree in JSON types. A leaf is the name of its arm.

        Every other node has the keys "column", "below" (a number), "before" (a date) or "in" (a
        list of values), "or_missing" (true if the condition is true for a missing value), and "yes"
        and "no" with the nodes for rows for which the condition is true or false.

        >>> from daband.serving import Rule
        >>> Rule(0, ("letter",)).to_json()
        'letter'
        """
        return _write_json(self.node, self.leaf_arms)

    def to_growthbook(self) -> list[dict[str, Any]]:
        """Return the rules of a feature in GrowthBook: the first rule whose condition is true
        applies.
        """
        return [
            {"condition": {"$and": conditions}, "force": self.leaf_arms[leaf]}
            for conditions, leaf in _list_conditions(self.node)
        ]

    def to_text(self) -> str:
        """Return the rule as indented text."""
        return "\n".join(_write_text(self.node, self.leaf_arms, "")) + "\n"


def _format(value: Any) -> str:
    """Return a number or a date as text; whole numbers have no decimals."""
    if isinstance(value, str):
        return value
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(value)


def _name(name: str) -> str:
    """Return a quoted name of SQL."""
    return '"' + name.replace('"', '""') + '"'


def _quote(text: str) -> str:
    """Return a string literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _write_sql_case(node: Node, arms: Sequence[str], indent: str) -> str:
    """Return a tree as nested ``CASE`` expressions."""
    if isinstance(node, int):
        return _quote(arms[node])
    column = _name(node.column)
    if node.kind == "equals":
        forms = node.forms
        texts = ", ".join(_quote(form) for form in forms if isinstance(form, str))
        operand = column if len(forms) == 1 else f"CAST({column} AS VARCHAR)"
        condition = f"{operand} IN ({texts})"
    else:
        value = node.value
        condition = f"{column} < {_quote(value) if isinstance(value, str) else _format(value)}"
    condition += f" OR {column} IS NULL" if node.or_missing else ""
    inner = indent + "  "
    yes, no = (_write_sql_case(child, arms, inner) for child in (node.yes, node.no))
    return f"CASE\n{inner}WHEN {condition} THEN {yes}\n{inner}ELSE {no}\n{indent}END"


def _write_json(node: Node, arms: Sequence[str]) -> Any:
    """Return a tree as nested mappings, as ``Rule.to_json`` describes."""
    if isinstance(node, int):
        return arms[node]
    is_category = node.kind == "equals"
    return {
        "column": node.column,
        "in" if is_category else node.kind: node.forms if is_category else node.value,
        "or_missing": node.or_missing,
        "yes": _write_json(node.yes, arms),
        "no": _write_json(node.no, arms),
    }


def _list_conditions(node: Node) -> list[tuple[list[Any], int]]:
    """Return the conditions of GrowthBook on the way to each leaf, and the leaf."""
    if isinstance(node, int):
        return [([], node)]
    if "." in node.column or node.column.startswith("$"):
        raise InvalidInput(
            f"GrowthBook cannot use column {node.column!r}: it reads a dot as the path of a nested"
            " value, and $ as an operator. Rename the column in the data, or use SQL or the JSON"
            " tree"
        )
    is_category = node.kind == "equals"
    test: Any = {"$in": node.forms} if is_category else {"$lt": node.value}
    condition: Any = {node.column: test if is_category else {"$exists": True, **test}}
    if node.or_missing:
        condition = {"$or": [{node.column: {"$exists": False}}, {node.column: test}]}
    sides = (condition, node.yes), ({"$not": condition}, node.no)
    return [
        ([test, *conditions], leaf)
        for test, child in sides
        for conditions, leaf in _list_conditions(child)
    ]


def _write_text(node: Node, arms: Sequence[str], indent: str) -> list[str]:
    """Return the lines of text of a tree."""
    if isinstance(node, int):
        return [f"{indent}{arms[node]}"]
    yes, no = (_write_text(child, arms, indent + _INDENT) for child in (node.yes, node.no))
    return [f"{indent}if {describe_condition(node)}:", *yes, f"{indent}otherwise:", *no]
