"""Figures and tables for papers: sizes, kinds, heat maps, LaTeX."""

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.text import Text

import dpaudit_ray as da
from dpaudit_ray.errors import SpecError
from tests.report.handed import LANDSCAPE, played, sweep

NOISES, SIZES = [1.0, 1.5, 2.0], [1, 2, 3, 4]


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def two_keys(tmp_path_factory):
    grid = {"mechanism.noise_multiplier": NOISES, "mechanism.batch_size": SIZES}
    raw = sweep("two-keys", mechanism=LANDSCAPE, grid=grid)
    return da.open(played(raw, tmp_path_factory.mktemp("two"), 72))


@pytest.fixture(scope="module")
def one_key(tmp_path_factory):
    raw = sweep("one-key", mechanism=LANDSCAPE, grid={"mechanism.noise_multiplier": NOISES})
    return da.open(played(raw, tmp_path_factory.mktemp("one"), 18))


def test_heat_map_has_the_epsilon_to_quote_of_each_cell(two_keys):
    axes = two_keys.plot(kind="heatmap")[0]
    (picture,) = axes.images
    values = np.asarray(picture.get_array())
    assert values.shape == (3, 4)
    table = two_keys.overview
    wanted = table.pivot(
        index="mechanism.noise_multiplier", columns="mechanism.batch_size", values="quote"
    )
    np.testing.assert_allclose(values, wanted.to_numpy(dtype=float))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("batch_size", "noise_multiplier")


@pytest.mark.parametrize(("columns", "inches"), [(1, 3.35), (2, 6.9)])
@pytest.mark.parametrize("kind", ["bars", "steps", "heatmap"])
def test_paper_style_has_the_width_of_columns_and_one_size_of_type(two_keys, kind, columns, inches):
    axes = two_keys.plot(kind=kind, style="paper", columns=columns)
    figure = np.ravel(axes)[0].figure
    assert figure.get_size_inches()[0] == inches
    assert {text.get_fontsize() for text in figure.findobj(Text) if text.get_text()} == {8}


def test_trend_is_drawn_over_one_key(one_key):
    axes = one_key.plot(kind="trend", style="paper")
    assert axes.get_xlabel() == "noise_multiplier"
    assert {tuple(line.get_xdata()) for line in axes.lines} == {tuple(NOISES)}


def test_kinds_that_a_run_cannot_have_are_refused(one_key, two_keys):
    with pytest.raises(SpecError, match="kind: is heatmap, but fewer than two keys"):
        one_key.plot(kind="heatmap")
    with pytest.raises(SpecError, match="trend: cannot be drawn: not exactly one key"):
        two_keys.plot(kind="trend")
    with pytest.raises(SpecError, match="kind: is 'pie'; give bars, steps, trend, heatmap"):
        one_key.plot(kind="pie")
    with pytest.raises(SpecError, match="columns: is 3; give 1 or 2"):
        one_key.plot(style="paper", columns=3)


def test_latex_has_a_row_for_each_audit_and_escapes_names(two_keys):
    text = two_keys.to_latex()
    assert text.startswith("\\begin{tabular}{")
    assert "noise\\_multiplier" in text
    rows = [line for line in text.splitlines() if line.endswith("\\\\")]
    assert len(rows) == 1 + len(NOISES) * len(SIZES)
