"""Check the size and the layout of the package: each limit may fall, and should not rise."""

import ast
import importlib
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

import daband

ROOT = Path(daband.__file__).parent
TESTS = Path(__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}
PUBLIC_MODULES = {
    "__init__.py",
    "__main__.py",
    "daband.py",
    "errors.py",
    "neural_linucb.py",
    "sklearn.py",
    "weights.py",
}
MAX_ROOT_MODULES = 6
MAX_TOKENS = 259_400
MAX_LONG_LINES = 0.01
MAX_SKIPS = 10
MAX_PUBLIC_NAMES = 120
#: Modules whose tests are those of the modules that use them.
TESTED_ELSEWHERE = {
    "base/_arguments",
    "base/_lazy_polars",
    "base/_tensor_files",
    "bench/_executors",
    "bench/_methods",
    "cli/_experiments",
    "domains/readers/_columns",
    "features/_catalogue",
    "features/_fitted_steps",
    "logs/_reward_sums",
    "neural/encoders/_frozen_encoder",
    "neural/encoders/_mlp",
    "neural/encoders/_pretrained",
    "policies/_random",
    "policies/_registered",
    "service/_decider",
    "training/_log_sums",
    "training/_phase",
    "trust/_pilot_simulation",
}
#: Folders of tests whose subject is not one package: input that is rejected, pages, recorded
#: results, research data.
FOLDERS_ACROSS_MODULES = {"bad_input", "docs", "golden", "research_sets"}
#: Tests of what several modules do together.
TESTS_ACROSS_MODULES = {
    "checks/test_contributing",
    "cli/test_audit",
    "cli/test_files_domain",
    "cli/test_help",
    "cli/test_rules",
    "cli/test_without_bench",
    "cli/test_without_torch",
    "domains/test_arms",
    "domains/test_randomisation",
    "domains/test_same_features",
    "linear/test_large_contexts",
    "logs/test_weights",
    "neural/encoders/test_encoder_checks",
    "neural/test_encoder_argument",
    "neural/test_neural_threads",
    "neural/test_paths",
    "policies/test_all_or_nothing",
    "policies/test_conformance",
    "policies/test_fork",
    "policies/test_row_path",
    "policies/test_shift",
    "policies/test_source_worth",
    "policies/test_units",
    "service/test_arms",
    "service/test_bad_input",
    "service/test_control",
    "service/test_hostile_clients",
    "service/test_images",
    "service/test_kill",
    "service/test_limits",
    "service/test_offline",
    "service/test_page",
    "serving/test_control",
    "serving/test_distribution",
    "serving/test_onnx",
    "serving/test_request_arms",
    "serving/test_rows_and_batches",
    "training/test_full_feedback",
    "trust/test_guardrail",
    "trust/test_log_verdicts",
}
#: Modules of the standard library that Windows lacks.
POSIX_MODULES = {"crypt", "fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios"}
#: Calls in text mode depend on the system unless they state an encoding, at this position.
ENCODING_POSITIONS = {"open": 3, "read_text": 0, "write_text": 1}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


IGNORED_TOKENS = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def count_tokens(text: str) -> int:
    """Return the number of Python tokens without comments, docstrings and line breaks."""
    docstring_lines = {
        node.body[0].lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None
    }
    return sum(
        token.type not in IGNORED_TOKENS
        and not (token.type == tokenize.STRING and token.start[0] in docstring_lines)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def public_names() -> list[str]:
    """Return every name in the ``__all__`` of the package, its packages and its public modules."""
    modules = [
        "daband",
        *(f"daband.{path.parent.name}" for path in ROOT.glob("*/__init__.py")),
    ]
    modules += [
        f"daband.{path.stem}" for path in ROOT.glob("*.py") if not path.name.startswith("_")
    ]
    return [
        f"{module}.{name}"
        for module in modules
        for name in getattr(importlib.import_module(module), "__all__", ())
    ]


def test_comments_and_docstrings_are_not_counted_as_tokens():
    text = '"""A docstring\nof two lines."""\n\n# a comment\nx = 1\n\n\ndef f():\n    """Text."""\n'
    assert count_tokens(text) == len(["x", "=", "1", "def", "f", "(", ")", ":"])


def test_the_package_stays_small():
    assert sum(count_tokens(path.read_text()) for path in FILES) <= MAX_TOKENS


def test_lines_are_short_and_formatted():
    lines = [line for path in FILES for line in path.read_text().splitlines()]
    assert sum(len(line) > 100 for line in lines) <= MAX_LONG_LINES * len(lines)
    assert sum("fmt: skip" in line for line in lines) <= MAX_SKIPS


def test_the_root_has_few_modules():
    assert len(list(ROOT.glob("*.py"))) <= MAX_ROOT_MODULES


def test_a_module_that_is_not_public_starts_with_an_underscore():
    private = [
        path.relative_to(ROOT)
        for path in FILES
        if path.name[0] != "_" or path.name == "__main__.py"
    ]
    assert {path.name for path in private} <= PUBLIC_MODULES, private


def test_the_public_api_stays_small():
    names = public_names()
    assert len({name.rpartition(".")[2] for name in names}) <= MAX_PUBLIC_NAMES, names


def test_a_public_name_is_listed_by_one_package():
    listed = defaultdict(set)
    for name in public_names():
        if name.count(".") > 1:
            listed[name.rpartition(".")[2]].add(name)
    assert {name: places for name, places in listed.items() if len(places) > 1} == {}


def test_a_module_has_a_test_file_of_its_name():
    modules = {path.relative_to(ROOT) for path in FILES if not path.name.startswith("__")}
    expected = {module.with_name(f"test_{module.name.lstrip('_')}"): module for module in modules}
    found = {path.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    without = {str(expected[path].with_suffix("")) for path in expected.keys() - found}
    others = {
        str(path.with_suffix(""))
        for path in found - expected.keys()
        if len(path.parts) > 1 and path.parts[0] not in FOLDERS_ACROSS_MODULES
    }
    assert (without, others) == (TESTED_ELSEWHERE, TESTS_ACROSS_MODULES)


def test_errors_are_matched_by_names_and_values():
    """A pattern of three words in a row breaks when a message becomes clearer."""
    sentences = [
        f"{path.relative_to(TESTS)}:{node.value.lineno}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.keyword) and node.arg == "match"
        if re.search(r"([a-z]{2,} ){2}[a-z]{2,}", re.sub("`.*?`", "", ast.unparse(node.value)))
    ]
    assert sentences == []


def is_text_call_without_encoding(call: ast.Call) -> bool:
    """Return True for a call that opens, reads or writes a file as text without an encoding."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    is_method = isinstance(call.func, ast.Attribute)
    position = ENCODING_POSITIONS.get(name)
    if position is None or is_method != (name != "open"):  # Image.open; our own write_text
        return False
    modes = [*call.args[1:2], *(word.value for word in call.keywords if word.arg == "mode")]
    is_binary = name == "open" and any("b" in ast.literal_eval(mode) for mode in modes)
    has_encoding = len(call.args) > position or "encoding" in {word.arg for word in call.keywords}
    return not is_binary and not has_encoding


def test_files_are_read_and_written_as_utf_8_on_every_system():
    calls = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and is_text_call_without_encoding(node)
    }
    assert not calls
    for source in ("open(p)", "open(p, 'a')", "p.read_text()", "p.write_text(t)"):
        assert is_text_call_without_encoding(ast.parse(source, mode="eval").body)


def test_nothing_is_imported_or_used_that_windows_lacks():
    imported = {
        name.partition(".")[0]
        for tree in TREES.values()
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert "signal" in imported
    assert not imported & POSIX_MODULES
    # Windows cannot open such a file a second time, by its name
    assert not [path for path in FILES if "NamedTemporaryFile" in path.read_text(encoding="utf-8")]
