"""Means over seeds and plots of curves."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from tests.proof.figures import Mean, mean, plot


def test_the_interval_is_that_of_student() -> None:
    found = mean([0.8, 0.9, 1.0])
    assert found.value == pytest.approx(0.9)
    assert found.margin == pytest.approx(4.30 * 0.1 / math.sqrt(3))
    assert str(mean([0.5])) == "0.500"


def test_a_plot_has_a_line_and_a_band_for_each_curve_within_its_frame() -> None:
    curves = {"one": [(0.0, Mean(0.0, 0.1)), (10.0, Mean(1.0, 0.2))], "other": [(0.0, Mean(0.5, math.inf))]}
    picture = ElementTree.fromstring(plot(curves, along="steps", up="reward"))
    space = "{http://www.w3.org/2000/svg}"
    assert len(picture.findall(f"{space}polyline")) == 2
    (band,) = picture.findall(f"{space}polygon")
    heights = [float(pair.split(",")[1]) for pair in band.attrib["points"].split()]
    assert min(heights) >= 0
    assert max(heights) <= 360
