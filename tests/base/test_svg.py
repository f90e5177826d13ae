"""A figure in SVG: it is well-formed, and its points are inside."""

import re
from xml.etree import ElementTree

import pytest

from daband.base._svg import draw_curve, draw_intervals


def test_points_are_inside_the_figure_and_limits_may_be_unknown():
    points = [(100.0, 3.0, None, None), (200.0, 1.0, -2.0, 4.0), (300.0, 1.5, 0.5, None)]
    figure = ElementTree.fromstring(draw_curve(points, label="Lift, <\0euros>"))
    _, _, width, height = map(float, figure.attrib["viewBox"].split())
    band, curve, line = (
        [tuple(map(float, point.split(","))) for point in element.attrib["points"].split()]
        for element in figure
        if "points" in element.attrib
    )
    assert (len(band), len(curve), len(line)) == (6, 3, 2)
    for x, y in [*band, *curve, *line]:
        assert 0 <= x <= width
        assert 0 <= y <= height
    assert curve[1][1] > curve[2][1]  # smaller values are lower
    assert figure.find("title").text == "Lift, <\ufffdeuros>"
    assert re.search("300 rounds", "".join(figure.itertext()))
    assert draw_curve([], label="Lift") == ""
    assert draw_intervals([], label="Lift") == ""


def test_intervals_are_drawn_to_scale_with_a_title():
    rows = [("call <1>", 1.0, 0.5, 2.0), ("letter", -1.0, -2.0, 0.0)]
    figure = ElementTree.fromstring(draw_intervals(rows, label="Lift, <euros>", line=0.0))
    texts = [one.text for one in figure.iter("text")]
    assert texts == ["call <1>", "letter", "-2", "2", "Lift, <euros>"]
    centres = [float(one.attrib["cx"]) for one in figure.iter("circle")]
    lines = [[float(one.attrib[name]) for name in ("x1", "x2")] for one in figure.iter("line")]
    assert lines[0][0] < centres[0] < lines[0][1]
    assert centres[0] - lines[2][0] == pytest.approx(lines[2][0] - centres[1], abs=0.2)
