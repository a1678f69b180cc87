"""Tables of one's own: what columns become, and every mistake in words."""

import numpy as np
import pytest

from dpaudit_ray.data.csv import Csv
from dpaudit_ray.errors import DataError

TABLE = "age;city;paid\n20;Rome;no\n 60;Oslo;yes\n40;Rome;no\n"


def load(folder, text=TABLE, **options):
    (folder / "own.csv").write_text(text)
    return Csv(path=str(folder / "own.csv"), **options).load()


def test_columns_become_features_and_words_classes(tmp_path):
    options = {"categories": ["city"], "label_order": ["no", "yes"], "ranges": {"age": [20, 60]}}
    data = load(tmp_path, **options)
    np.testing.assert_array_equal(data.x, [[0, 0, 1], [1, 1, 0], [0.5, 0, 1]])
    assert (data.y.tolist(), data.classes) == ([0, 1, 0], 2)


@pytest.mark.parametrize(("last", "y"), [("0\n1", [0, 1]), ("True\nFalse", [1, 0])])
def test_classes_may_be_numbers_or_truths(last, y, tmp_path):
    first, second = last.split()
    assert load(tmp_path, f"a,y\n1,{first}\n2,{second}\n").y.tolist() == y


def test_any_numbers_are_learnt_by_regression(tmp_path):
    data = load(tmp_path, "y,a\n100,1\n2.5,3\n", label="y", regression=True)
    assert (data.y.dtype, data.y.tolist(), data.classes) == (np.float32, [100, 2.5], 0)


@pytest.mark.parametrize(
    ("text", "options", "problem"),
    [
        (TABLE, {}, "column 'city' (column 2) is text, such as Rome: list it under `categories: ["),
        (TABLE, {"drop": ["city"]}, "paid is text; `label_order: ['no', 'yes']` takes its values"),
        (TABLE, {"drop": ["city"], "label_order": ["yes"]}, "paid has 'no'; list it in"),
        (TABLE, {"drop": ["ctiy"]}, "`drop` names 'ctiy', which is no column; did you mean city?"),
        (TABLE, {"label": "Paid"}, "`label` names 'Paid', which is no column; did you mean paid?"),
        (TABLE, {"drop": ["city"], "ranges": {"age": [2, 1]}}, "`ranges` of 'age' falls from 2"),
        ("a,y\n1,0\n,1\n", {}, "row 2 below the header has no (finite) value in column 'a'; fill"),
        ("a,y\n,\n,1\n", {}, "row 1 below the header has no (finite) value in column 'a', and 2"),
        ("a,y\ninf,0\n2,1\n", {}, "row 1 below the header has no (finite) value in column 'a'"),
        (",a,y\n0,1,0\n1,1,1\n", {}, "a column has no name, as numbers of rows; `drop: ['Unnamed:"),
        ("1.5,0\n2,1\n", {}, "holds 1 rows of 2 columns, the first of which are called 1.5, 0;"),
        ("y\n0\n1\n", {}, "holds 2 rows of 1 columns, the first of which are called y; give"),
        ("a,y\n", {}, "holds 0 rows of 2 columns"),
        ("a,y\n1,2,0\n1,2,1\n", {}, "holds 2 rows of 2 columns, the first of which are called a"),
        ("a,y\n1,0\n1,2,1\n", {}, "not such a CSV table (Error tokenizing data"),
        ("a,y\n1,1\n2,2\n", {}, "y holds the classes 1, 2; number two or more of them 0, 1, ..."),
        ("a,y\n1,1.5\n2,2\n", {}, "y must be integer classes [N], got float64 (2,); convert them,"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_cannot_be_read_is_told(text, options, problem, tmp_path):
    with pytest.raises(DataError) as error:
        load(tmp_path, text, **options)
    assert str(error.value).startswith(f"{tmp_path}/own.csv: {problem}")
