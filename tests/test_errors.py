"""What is said of errors that others raise."""

import pytest

from dpaudit_ray.errors import (
    REQUIRED,
    Mistakes,
    SpecError,
    SweepError,
    closest,
    first_line,
    out_of_memory,
    percent,
    plain,
    together,
    unknown_key,
)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no such\nlayer"), "no such"),
        (ValueError("\n  late"), "late"),
        (ValueError(), "ValueError"),
        (ValueError("x" * 300), "x" * 300),
        (ValueError("CPU, " * 400), "CPU, " * 60 + "..."),
    ],
)
def test_a_message_of_others_is_a_line(error, line):
    assert first_line(error) == line


def test_numbers_have_one_spelling():
    values = [1e-5, 2.5e-12, 1e6, 1e10, 0.3, 1e-100, float("inf")]
    assert [*map(plain, values)] == ["1e-5", "2.5e-12", "1e6", "1e10", "0.3", "1e-100", "inf"]
    assert [plain(1 / 3e5, ".3g"), plain(1.25e-5, "")] == ["3.33e-6", "1.25e-5"]
    assert [percent(0.3), percent(0.99875)] == ["30 %", "99.875 %"]


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (SpecError("mechanism.model", "fails: CUDNN_STATUS_ALLOC_FAILED"), True),
        (KeyError("out of memory"), False),
        (RuntimeError("sizes do not match"), False),
    ],
)
def test_memory_that_ran_out_is_known_by_class_or_words(error, ran_out):
    assert out_of_memory(error) is ran_out


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("stepz", "steps"),
        ("batch-size", "batch_size"),
        ("noise", "noise_multiplier"),
        ("rate", "rates"),
        ("lr", "learning_rate"),
        ("max_grad_norm", "clip_norm"),
        ("sigma", "noise_multiplier"),
        ("Epochs", "steps"),
        ("num_iterations", "steps"),
        ("l2_norm_clip", "clip_norm"),
        ("stddev", "noise_multiplier"),
        ("expected_batch_size", "batch_size"),
        ("attacker", ""),
        ("", ""),
        ("x" * 1000, ""),
    ],
)
def test_what_was_meant_is_what_is_most_alike(written, meant):
    known = ["steps", "batch_size", "noise_multiplier", "learning_rate", "clip_norm", "rates"]
    assert closest(written, known) == meant


@pytest.mark.parametrize(
    ("written", "meant"), [("attacker", "adversary"), ("dataset", "data"), ("epochs", "")]
)
def test_what_others_call_a_section_is_meant_only_where_it_may_stand(written, meant):
    assert closest(written, ["mechanism", "adversary", "audit", "data"]) == meant


def test_mistakes_are_told_together_each_once_and_typos_first():
    mistakes = Mistakes()
    for error in (
        SpecError("a.trials", REQUIRED),
        SpecError("a.delta", REQUIRED),
        SpecError("b", "is wrong"),
        SpecError("b", "is wrong"),
        unknown_key("trails", ["trials"]).under("a"),
    ):
        with mistakes.noted():
            raise error
    with pytest.raises(SweepError) as caught:
        mistakes.raise_if_any()
    assert [one.key for one in caught.value.problems] == ["a.trails", "a.delta", "b"]
    assert caught.value.under("top").problems[0].key == "top.a.trails"
    assert type(together([SpecError("b", "is wrong")])) is SpecError
    Mistakes().raise_if_any()
