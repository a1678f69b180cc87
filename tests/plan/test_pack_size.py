"""`pack_size: auto` goes by the model's size; what was planned before it did stays as it is."""

from typing import Any

import pytest

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray.models.fcnn import Fcnn
from dpaudit_ray.report import check
from dpaudit_ray.sweep import spec
from dpaudit_ray.sweep.spec import Sweep
from tests.command import changed


def automatic(tiny: dict[str, Any], trials: int, model: dict[str, Any]) -> Sweep:
    changed(tiny, "audit.trials", trials)
    changed(tiny, "mechanism.model", model)
    return spec.from_raw(changed(tiny, "resources.pack_size", "auto"))


def larger(monkeypatch: pytest.MonkeyPatch, models: int) -> None:
    """As if `fcnn` were so large that a pack has room for so many."""
    monkeypatch.setattr(Fcnn, "parameters", property(lambda _: (1 << 27) // models))


@pytest.mark.parametrize(
    ("model", "models"),
    [({"name": "fcnn"}, 256), ({"name": "wrn16"}, 48), ({"name": "resnet18"}, 12)],
)
def test_large_models_come_in_smaller_packs(model, models, tiny):
    sweep = automatic(tiny, 600, model)
    for audit in planning.make(sweep).audits:
        assert audit.packs[:2] == ((0, models - 1), (models, 2 * models - 1))


def test_a_plan_of_before_keeps_its_packs(tiny, monkeypatch):
    old = planning.make(automatic(tiny, 600, {"name": "fcnn"}))
    larger(monkeypatch, 40)
    more = planning.make(automatic(tiny, 700, {"name": "fcnn"}), old)
    assert [audit.packs[:3] for audit in more.audits] == [audit.packs for audit in old.audits]
    assert more.audits[0].packs[3:] == ((600, 639), (640, 679), (680, 699))
    assert [a.fingerprint for a in more.audits] == [a.fingerprint for a in old.audits]


def test_a_run_of_before_and_what_it_was_extended_by_are_in_order(tiny, tmp_path, monkeypatch):
    sweep = automatic(tiny, 300, {"name": "fcnn"})
    location = da.run(sweep, storage_path=str(tmp_path), executor="inline").location
    larger(monkeypatch, 40)
    assert check.check_run(location).in_order
    sweep = automatic(tiny, 350, {"name": "fcnn"})
    da.run(sweep, storage_path=str(tmp_path), executor="inline")
    found = check.check_run(location)
    assert found.in_order
    assert not found.different
    larger(monkeypatch, 50)
    assert not check.check_run(location).in_order  # packs of 40 are of no version
