"""Warnings are lines of the terminal."""

import warnings

from daband.cli._shared import show_warnings_once


def test_a_warning_is_a_line_and_only_while_it_is_wanted(console):
    before = warnings.showwarning
    screen = console(False)
    with show_warnings_once():
        warnings.simplefilter("always")
        for _ in range(3):
            warnings.warn(
                "nearly all target contexts go to one arm [95%]", UserWarning, stacklevel=1
            )
    assert screen.file.getvalue() == "warning   nearly all target contexts go to one arm [95%]\n"
    assert warnings.showwarning is before
