"""Parts of the watched process, each on its own: nothing is run."""

import gc
import math
import random
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler

from dpaudit_ray.errors import SpecError
from dpaudit_ray.opacus import Marks, audited, marks_of
from dpaudit_ray.scripts.protocol import PinnedStep, Report, RunRequest
from dpaudit_ray.scripts.watch import (
    forward_passes,
    generators,
    opacus_engine,
    other_updates,
    pinned_runs,
    publications,
    record_choice,
    release_functions,
    run_state,
    shared_records,
    watched_process,
)
from dpaudit_ray.scripts.watch.accountants import Accountants
from dpaudit_ray.scripts.watch.forward_passes import repeat_forward
from dpaudit_ray.scripts.watch.noise_draws import NoiseDraws, StepNoise, draw_noise
from dpaudit_ray.scripts.watch.publications import digests_of_all_networks
from dpaudit_ray.scripts.watch.run_state import WatchedRun
from dpaudit_ray.scripts.watch.shared_records import PrivateRecords
from dpaudit_ray.scripts.watch.tensors import digest, has_numbers, spread_indices


def watched(tmp_path: Path, **fields: object) -> WatchedRun:
    return WatchedRun(RunRequest(seed=0, **fields), tmp_path / "record")


def random_numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_the_watch_imports_nothing_that_torch_2_1_lacks():
    for file in Path(watched_process.__file__).parent.glob("*.py"):
        assert "_pytree import tree_leaves" not in file.read_text(encoding="utf-8"), file


@pytest.mark.parametrize("masks", [False, True])
def test_numbers_that_some_draws_leave_out_are_gaps(masks):
    source = np.random.default_rng(3)

    def draw(_: int) -> list[Any]:
        noise = source.normal(size=50)
        noise[:5] = 0.0  # in no draw
        return [np.where(source.random(50) < 0.5, noise, 0.0) if masks else noise]

    draws = draw_noise(draw(0), draw)
    assert draws.has_gaps == masks
    assert len(draws.mean[0]) == (50 if masks else 45)  # what is not released has no noise


@pytest.mark.parametrize(
    ("count", "chosen"), [(0, []), (3, [0, 1, 2]), (6, [*range(6)]), (40, [0, 6, 13, 20, 26, 33])]
)
def test_indices_are_evenly_spread(count, chosen):
    assert spread_indices(count, 6) == chosen


def test_a_symmetric_matrix_has_each_number_once():
    noise = np.random.default_rng(4).normal(size=(5, 5))
    symmetric = (noise + noise.T) / 2
    (release,) = release_functions._released([symmetric])
    assert np.count_nonzero(release) == 15
    assert np.dot(release, release) == pytest.approx((symmetric**2).sum())
    (other,) = release_functions._released([noise])
    assert other.tolist() == noise.reshape(-1).tolist()


# Records in memory


def test_a_record_that_replaces_another_has_another_label_too():
    data = TensorDataset(torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 0, 0]))
    assert [pinned_runs.other_record(data, record) for record in range(4)] == [1, 3, 1, 1]


def test_a_record_becomes_the_largest_in_memory_once():
    x, y = torch.tensor([[0.0, 9.0], [2.0, 3.0], [4.0, 5.0], [1.0, 7.0]]), torch.arange(4)
    data = Subset(TensorDataset(x, y), [3, 2, 1, 0, 0])
    for _ in range(2):
        assert pinned_runs.exchange(data, 0) == {3: 3, 4: 4}
        assert x.tolist() == [[4.0, 9.0], [2.0, 3.0], [4.0, 5.0], [1.0, 7.0]]
        assert y.tolist() == [3, 1, 2, 3]


def test_a_subset_without_the_record_stays():
    x = torch.arange(8.0).reshape(4, 2)
    assert pinned_runs.exchange(Subset(TensorDataset(x), [3, 2]), 0) == {}
    assert pinned_runs.exchange(TensorDataset(x), 7) == {}
    assert x.tolist() == torch.arange(8.0).reshape(4, 2).tolist()


def test_records_of_files_are_read_in_each_others_place():
    class Files(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index

    assert pinned_runs.exchange(Files(), 1) == {1: 3}
    assert pinned_runs.exchange(Subset(Files(), [0, 2, 1]), 1) == {2: 0}


def test_every_other_record_is_exchanged_in_memory():
    x, y = torch.arange(10.0).reshape(5, 2), torch.arange(5)
    data = Subset(TensorDataset(x, y), [4, 2, 0])
    assert pinned_runs.exchange_half(data) == {0: 1}
    assert y.tolist() == [0, 1, 2, 3, 2]
    assert x[4].tolist() == [4.0, 5.0]
    assert pinned_runs.exchange_half(iter([1, 2])) == {}


def test_delta_is_that_of_the_last_request_for_noise(tmp_path):
    run = watched(tmp_path, inspects=True)
    with pytest.raises(SpecError, match="--delta"):
        watched_process._delta(run, None)
    run.networks.delta = 1e-6
    assert watched_process._delta(run, None) == 1e-6
    assert watched_process._delta(run, 1e-3) == 1e-3


def test_data_of_files_are_not_changed(tmp_path):
    array = np.memmap(tmp_path / "x", np.float32, "w+", shape=(4, 2))
    array[:] = np.arange(8).reshape(4, 2)
    mapped = torch.from_file(str(tmp_path / "y"), shared=True, size=8).reshape(4, 2)
    mapped[:] = torch.arange(8.0).reshape(4, 2)
    data = TensorDataset(torch.from_numpy(array), mapped)
    data.array, data.view, data.memory = array, np.asarray(array), np.arange(4)
    data.column, data.numpy = np.arange(8).reshape(4, 2)[:, 1], torch.from_numpy(np.arange(4))
    pinned_runs.exchange(data, 0)
    for values in (array, *data.tensors, data.view):
        assert values.reshape(-1).tolist() == list(range(8))
    assert data.memory.tolist() == data.numpy.tolist() == [2, 1, 2, 3]
    assert data.column.tolist() == [5, 3, 5, 7]


@pytest.mark.parametrize("pinned", ["unchanged", "exchanged"])
def test_records_of_a_custom_loop_are_found_in_its_arrays(tmp_path, monkeypatch, pinned):
    for package in ("jax", "tensorflow"):  # another test may have imported it
        monkeypatch.delitem(sys.modules, package, raising=False)
    x, y, order = random_numbers(50, 3), np.arange(50) % 3, torch.arange(50)
    x[2] *= 9
    raw, indices = x.tolist(), [7, 2, 9, 4]
    run = watched(tmp_path, pinned=pinned)
    batch = [x[indices], torch.from_numpy(y[indices])]
    pinned_runs.find_tables(run, [torch.zeros(4, 3), *batch])
    assert [id(table) for table in run.pinned.tables] == [id(x), id(y)]
    assert (run.pinned.chosen, run.pinned.chosen_as) == (2, "the largest record")
    changed = [number for number, row in enumerate(raw) if row != x[number].tolist()]
    assert changed == ([2] if pinned == "exchanged" else [])
    assert torch.equal(order, torch.arange(50))
    if not changed:
        assert pinned_runs.has_row(run, batch)
        assert not pinned_runs.has_row(run, [rows[2:] for rows in batch])


class Texts(torch.utils.data.Dataset):
    """Texts of several lengths; the third is the longest."""

    lengths = (3, 2, 7, 4, 3, 3)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.ones(self.lengths[index]).long(), 0


@pytest.mark.parametrize("workers", [0, 1])
def test_the_longest_record_of_the_first_batch_is_chosen(tmp_path, monkeypatch, workers):
    run = watched(tmp_path, inspects=True)
    data = Texts()
    run.networks.data.append(data)
    run.phase = "main"
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    monkeypatch.setattr(_BaseDataLoaderIter, "_next_index", _BaseDataLoaderIter._next_index)
    record_choice.install(run)
    next(iter(DataLoader(data, 6, collate_fn=len, num_workers=workers)))
    assert (run.pinned.chosen, run.pinned.chosen_as) == (2, "the longest record")


def test_what_is_conspicuous_in_a_batch():
    x, labels = random_numbers(6, 2), [0, 1, 0, 0, 0, 0]
    x[4] *= 50
    items = list(zip(x, labels, strict=True))
    assert record_choice.conspicuous_record(items) == (4, "the largest record")
    x[5, 0] = torch.nan
    assert record_choice.conspicuous_record(items) == (5, "a record that is not finite")
    alike = [(torch.ones(2), 0)] * 6
    assert record_choice.conspicuous_record(alike) == (3, "a record in the middle of a batch")


def test_equal_records_are_counted_unless_they_may_be_equal_by_chance(tmp_path):
    run = watched(tmp_path, inspects=True)
    x = random_numbers(6, 9)
    x[4] = x[1]
    record_choice.choose(run, list(zip(x, range(6), strict=True)), range(6))
    assert len(set(run.pinned.keys.values())) == 6  # labels differ
    record_choice.choose(run, list(zip(x, [0] * 6, strict=True)), range(6))
    assert len(set(run.pinned.keys.values())) == 5
    run.pinned.keys.clear()
    record_choice.choose(run, list(x[:, :7]), range(6))
    record_choice.choose(run, list((10 * x).long()), range(6))
    assert not run.pinned.keys


@pytest.mark.parametrize("fixed", [False, True])
def test_a_record_of_each_batch_is_exchanged_or_left_out(tmp_path, fixed):
    """Batches of a fixed size keep it. Which one is left out is found again by the draw."""
    run = watched(tmp_path, pinned="varied", record=0)
    run.pinned.leaves_out = not fixed
    items = [torch.full((2,), float(n == 1)) for n in range(4)]
    first = pinned_runs._varied_draw(run, [3, 5, 7, 9], items, keeps_size=False)
    second = pinned_runs._varied_draw(run, [4, 6, 8, 2], items, keeps_size=False)
    assert first == ([3, 3, 7, 9] if fixed else [3, 7, 9])
    assert second == [4, 4, 8, 2]
    step = PinnedStep(member=False, release=(), rows=(1.0,))
    draws = [np.array([3, 5, 7, 9]), np.array([4, 6, 8, 2])]
    one = pinned_runs.with_variation(run, step, draws[:1])
    verb = "another record in place of" if fixed else "leaving out"
    assert one.change == f"{verb} record 5 (the largest record)"
    assert one.missing == (None if fixed else 1)
    # Of a step that adds up two draws, two records are others.
    both = pinned_runs.with_variation(run, step, draws)
    assert both.rows == ()


def test_data_sets_with_common_records_are_of_one_group():
    x = random_numbers(40, 3)
    first, second = TensorDataset(x[:20]), TensorDataset(x[20:])
    data = TensorDataset(x)
    halves = [Subset(data, range(20)), Subset(data, range(20, 40))]
    nested = Subset(halves[1], [0, 3])
    owners = list(range(6))
    datas = [first, second, *halves, nested, TensorDataset(x[:5])]
    # A subset is compared with its base by index, and with another data set by rows.
    assert shared_records.groups_by_records(datas, owners) == [0, 1, 0, 1, 1, 0]
    assert shared_records.groups_by_records([first, second], ["engine", "engine"]) == [0, 0]


@pytest.mark.parametrize(("values", "common", "shares"), [(30, 0, 0), (30, 40, 1), (4, 0, 1)])
def test_rows_of_few_values_may_be_equal_by_chance(values, common, shares):
    """Of 27,000 or 64 rows; if too many are equal, none is known to be another record."""
    x = torch.randint(values, (800, 3), generator=torch.Generator().manual_seed(1)).float()
    parts = [TensorDataset(x[: 400 + common].clone()), TensorDataset(x[400:].clone())]
    assert shared_records.share_records(*parts) == bool(shares)


# What is published


def test_what_is_returned_has_a_name(tmp_path):
    run = watched(tmp_path)
    run.publications.marks = Marks(public=("net",))
    network = nn.Linear(1, 1)
    network.weight.grad = torch.ones(1, 1)
    returned = {"mean": np.ones(2), "losses": [0.5, 0.25], "net": network, "n": 3, "word": "a"}
    publications.pin_publications(run, returned)
    publications.pin_publications(run, {"counts": np.zeros(2, np.uint16)}, "file 1: ")
    names = [name for name, _ in run.publications.pinned]
    assert names == ["mean", "losses", "n", "word", "file 1: counts"]
    publications.pin_publications(run, network)
    names = [name for name, _ in run.publications.pinned[5:]]
    assert names == ["weight", "weight.grad", "bias"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (3, 4),
        ("a", "b"),
        ({"vocabulary": {"a": 0}}, {"vocabulary": {"b": 0}}),
        (torch.tensor([1]), torch.tensor([2])),
        ([1, "a"], [1, "b"]),
    ],
)
def test_other_values_have_other_digests(tmp_path, first, second):
    digests = []
    for value in (first, first, second):
        run = watched(tmp_path)
        publications.pin_publications(run, {"value": value})
        digests.append(run.publications.pinned)
    assert digests[0] == digests[1] != digests[2]
    assert len(digests[0]) == 1


def test_arrays_that_are_returned_have_names_and_other_values_are_left_out():
    odd = [nn.LazyLinear(2), nn.Linear(2, 2, device="meta"), torch.eye(2).to_sparse()]
    returned = {"model": nn.Linear(2, 1), "odd": odd, "loss": torch.tensor(1.0), "epochs": 3}
    values = publications.named_values(returned | {"means": torch.ones(2)})
    names = [(name, kind) for name, kind, value in values if has_numbers(value)]
    assert names == [("model.weight", "Linear"), ("model.bias", "Linear"), ("means", "")]


@pytest.mark.parametrize("public", ["Generator", ["Generator"], ("Generator",)])
def test_a_single_name_is_public_without_a_list(public):
    assert marks_of(audited(1e-5, public=public)(lambda: None)).public == ("Generator",)


def test_networks_from_before_the_fork_are_found():
    """What the process that forks has imported is frozen, and its collector lists it no more."""
    network = nn.Linear(2, 2)
    gc.freeze()
    assert digest(network.weight) in digests_of_all_networks()


TOKENS = torch.randint(0, 500, (200, 12), generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 3, (200,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("value", "is_record"),
    [
        (TOKENS[:50].clone(), True),
        (TOKENS[7].double(), True),
        (torch.cat([torch.zeros(90, 12), TOKENS[:10]]), True),
        (LABELS[:100].clone(), True),
        (TOKENS[:50] + 1, False),
        (torch.zeros(20, 12).long(), False),
        (torch.arange(200), False),
        (torch.tensor(3), False),
        (LABELS.flip(0), False),
    ],
)
def test_arrays_whose_rows_are_private_records(value, is_record):
    zeros = torch.zeros(1, 12).long()
    order = torch.arange(200)
    records = PrivateRecords([torch.cat([TOKENS, zeros]), LABELS, order])
    assert records.has_rows_of(value) == is_record


def test_buffers_of_records_are_found_though_they_were_there_before(tmp_path):
    run = watched(tmp_path, inspects=True)
    x = random_numbers(60, 3)
    run.networks.data.append(TensorDataset(x, LABELS[:60]))
    network = nn.Linear(3, 1)
    network.register_buffer("bank", torch.cat([x] * 3, dim=1)[:, :3].clone())
    network.register_buffer("public", random_numbers(60, 3, seed=7))
    run.networks.modules.append(network)
    run.publications.before = digests_of_all_networks()
    returned = {"net": network, "rows": x[:9].tolist(), "losses": [0.1, 0.2], "tokens": LABELS}
    found = publications.leftovers(publications.remarks(run, returned))
    assert found == {"records": ["net.bank", "rows"]}


def test_a_released_gradient_in_half_precision_is_the_released_one(tmp_path):
    run = watched(tmp_path, inspects=True)
    network = nn.Linear(3, 1)
    params = list(network.parameters())
    released = [random_numbers(p.numel(), seed=index) for index, p in enumerate(params)]
    for p, values in zip(params, released, strict=True):
        p.grad = values.reshape(p.shape).clone()
    inner = types.SimpleNamespace(state={})
    optimizer = types.SimpleNamespace(params=params, original_optimizer=inner)
    last = [values.double().numpy() for values in released]
    run.optimizers.append(types.SimpleNamespace(optimizer=optimizer, last_release=last))
    network.half()
    assert publications.leftovers(publications.remarks(run, network)) == {}
    network.weight.grad *= 1.01
    found = publications.leftovers(publications.remarks(run, network))
    assert found == {"gradients": ["weight"]}


def test_data_that_were_scaled_by_themselves():
    x = random_numbers(200, 3) * 2 + 1
    raw, scaled = TensorDataset(x), TensorDataset((x - x.mean(0)) / x.std(0))
    assert shared_records.common_scale(scaled) == "have mean 0 and deviation 1"
    assert shared_records.common_scale(raw) == ""


def test_columns_that_have_a_scale_in_common():
    x = random_numbers(200, 6) @ random_numbers(6, 6)
    least, greatest = x.aminmax(dim=0)
    axes = torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh
    pixels = torch.randint(0, 256, (200, 6)) / 255
    words = [
        shared_records.common_scale(TensorDataset(columns))
        for columns in (x, (x - least) / (greatest - least), x @ axes.T, pixels)
    ]
    assert words == ["", "have the same least and greatest value", "are uncorrelated", ""]


def test_simple_functions_of_the_records_are_statistics():
    x = random_numbers(200, 3) * 2 + 1
    x[:40] *= torch.tensor([1.0, 0.0, 1.0])
    records = PrivateRecords([x, LABELS])
    for value in (x.mean(0), x.std(0), x.max(0).values, x.min(0).values, x.median(0).values):
        assert records.is_statistic(value)
    for value in ((x != 0).sum(0), torch.bincount(LABELS), torch.bincount(LABELS) / 200):
        assert records.is_statistic(value)
    for value in (x.mean(0) + 0.01, torch.ones(3), torch.tensor(1.0)):
        assert not records.is_statistic(value)
    y = random_numbers(200)
    records = PrivateRecords([x, y])
    assert records.is_statistic(y.mean())
    assert not records.is_statistic(y.mean() + 0.01)


def test_statistics_are_found_beside_values_that_are_not_finite():
    """A class without records has the log share -inf; a column with a gap has no mean."""
    x = random_numbers(200, 3) * 2 + 1
    x[7, 1] = math.nan
    labels = torch.where(LABELS == 1, 0, LABELS)
    labels[0] = 3
    records = PrivateRecords([x, labels])
    shares = torch.bincount(labels) / len(labels)
    assert 0 in shares
    for value in (shares.log(), (shares + 1e-9).log(), x.mean(0), x.nanmean(0)):
        assert records.is_statistic(value)
    for value in ((shares + 0.05).log(), x.nanmean(0) + 0.01, torch.full((3,), math.nan)):
        assert not records.is_statistic(value)


def test_networks_that_private_records_trained(tmp_path):
    run = watched(tmp_path, inspects=True)
    data = TensorDataset(random_numbers(4, 2), torch.zeros(4).long())
    teacher, student = nn.Linear(2, 1), nn.Linear(2, 1)
    run.networks.data.append(data)
    run.networks.modules.append(student)
    updates = run.updates
    rows = list(shared_records.keys_of(data.tensors))
    updates.fed = {(id(p), True): (p, "Linear", rows) for p in teacher.parameters()}
    updates.inputs_before_step = {id(p): 1 for p in teacher.parameters()}
    assert other_updates.trained_by_records(run) == ((), ("Linear",), False)
    updates.inputs_before_step = {id(p): 0 for p in teacher.parameters()}  # inputs after the step
    assert other_updates.trained_by_records(run) == ((), (), False)
    updates.fed = {(id(p), True): (p, "Linear", []) for p in teacher.parameters()}
    assert other_updates.trained_by_records(run) == ((), (), False)
    updates.fed = {(id(student.weight), False): (student.weight, "Linear", rows)}
    assert other_updates.trained_by_records(run) == ((), (), True)


# Forward passes


class Remembers(nn.Module):
    """Adds what the last batch left; `counts` only counts."""

    def __init__(self, written: bool) -> None:
        super().__init__()
        self.h, self.counts, self.written = torch.zeros(40, 3), 0, written

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.tanh() + self.h
        self.counts += 1
        self.h = self.h.copy_(y.detach()) if self.written else y.detach()
        return y


@pytest.mark.parametrize("written", [False, True])
def test_state_that_goes_from_one_batch_to_the_next(written):
    """It is no mixing of records, and the network is as it was before."""
    network = nn.Sequential(Remembers(written))
    x = random_numbers(40, 3)
    entry = repeat_forward(network, ((x,), {}), 0)
    assert not entry.mixes
    assert network[0].counts == 0
    assert not network[0].h.any()


def test_passes_that_cannot_be_compared_say_why():
    class Noisy(nn.Module):
        generator = torch.Generator()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn(x.shape, generator=self.generator)

    x = torch.zeros(40, 3)
    assert "a different result" in repeat_forward(Noisy(), ((x,), {}), 0).inconclusive
    assert "a batch of 2" in repeat_forward(nn.Tanh(), ((x[:2],), {}), 0).inconclusive
    assert "a row for each record" in repeat_forward(nn.L1Loss(), ((x, x), {}), 0).inconclusive


def test_records_along_the_second_dimension():
    lies_time_first = forward_passes.lies_time_first
    assert lies_time_first(((torch.zeros(12, 64, 6),), {}), records=64)
    assert not lies_time_first(((torch.zeros(64, 12, 6),), {}), records=64)
    assert not lies_time_first(((torch.zeros(64, 64),), {}), records=64)


def test_passes_under_vmap_are_not_repeated():
    batches = []

    def loss(x: torch.Tensor) -> torch.Tensor:
        assert forward_passes.in_functorch()
        batches.append(forward_passes.mapped_batch(((x,), {})))
        return x.sum()

    torch.func.vmap(loss)(torch.zeros(5, 4, 20))
    torch.func.vmap(torch.func.grad(loss))(torch.zeros(5, 1, 20))
    torch.func.vmap(loss)(torch.zeros(5, 20))
    assert batches == [4, 1, 1]
    assert not forward_passes.in_functorch()
    assert forward_passes.mapped_batch(((torch.zeros(5, 20),), {})) is None


# Accountants and engines


def registered(folder: Path, **answers: float) -> tuple[Accountants, Any]:
    """A watched accountant of a class of its own, after five releases."""

    class Accountant:
        """An accountant as Opacus has them, of the user's."""

        def __init__(self) -> None:
            self.history: list[tuple[float, float, int]] = []

        def get_epsilon(self, delta: float) -> float:
            return 2.0

        def get_privacy_spent(self, *, delta: float) -> tuple[float, float]:
            return self.get_epsilon(delta) + 1, 8.0

        def load_state_dict(self, state: dict) -> None:
            self.history = state["history"]

        def mechanism(self) -> str:
            return "own"

    run = watched(folder, answers=answers)
    run.releases = 5
    accountant = Accountant()
    opacus_engine.AccountantWatch(run).register(accountant)
    return run.accountants, accountant


def test_every_epsilon_that_a_script_gets_is_recorded(tmp_path):
    accountants, accountant = registered(tmp_path)
    assert accountant.get_epsilon(1e-5) == 2.0
    assert accountant.get_privacy_spent(delta=1e-6) == (3.0, 8.0)
    assert accountants.numbered_reports() == (Report(1e-5, 2.0, 5, -1), Report(1e-6, 3.0, 5, -1))
    accountant.load_state_dict({"history": [(1.0, 0.5, 7)]})
    assert accountants.loaded == {id(accountant): ((1.0, 0.5, 7),)}
    # Without engine an accountant with a history has the script's claim.
    assert [report.claim for report in accountants.numbered_reports()] == [0, 0]
    again, accountant = registered(tmp_path, **dict.fromkeys(accountants.answers, 7.0))
    assert accountant.get_epsilon(1e-5) == 7.0
    assert [report.epsilon for _, report in again.reports] == [7.0]


def test_what_accountants_answer_each_other_is_not_recorded(tmp_path):
    accountants, accountant = registered(tmp_path)
    search = types.FunctionType(
        (lambda a: a.get_epsilon(1e-5)).__code__, {"__name__": "opacus.accountants.utils"}
    )
    assert search(accountant) == 2.0
    assert accountants.reports == []


def test_a_sampler_that_opacus_drops_has_a_name():
    data = TensorDataset(torch.zeros(8, 2))
    assert opacus_engine.replaced_sampler(DataLoader(data, 2, shuffle=True)) == ""
    weighted = DataLoader(data, 2, sampler=WeightedRandomSampler(torch.ones(8).tolist(), 8))
    assert opacus_engine.replaced_sampler(weighted) == "WeightedRandomSampler"


# Generators and time


def test_generators_of_the_script_are_found_seeded_and_put_back():
    class Noise:
        def __init__(self) -> None:
            self.rng = np.random.RandomState(3)

    numpy_generator = np.random.default_rng(1)
    noise = Noise()
    own = {"torch": torch.Generator(), "python": random.Random(2)}
    draw = [
        lambda: numpy_generator.normal(),
        lambda: float(noise.rng.normal()),
        lambda: float(torch.randn((), generator=own["torch"])),
        lambda: own["python"].random(),
    ]
    found = generators.script_generators()
    for generator in (numpy_generator, noise.rng, *own.values()):
        assert any(generator is other for other in found)
    with generators.preserve_generators(found):
        first = [f() for f in draw]
        generators.seed_generators(9, found)
        seeded = [f() for f in draw]
        generators.seed_generators(9, found)
        assert [f() for f in draw] == seeded != first
    assert [f() for f in draw] == first


def test_noise_that_comes_again_elsewhere_has_a_shift():
    table = random_numbers(800).double().numpy()
    noise = StepNoise()
    for step, first in enumerate((200, 130)):
        numbers = table[first : first + 500]
        draws = NoiseDraws(2, [500.0], [numbers], [np.zeros(500, bool)])
        steps, *_ = noise.strongest_correlations(draws, step)
    assert (steps.kind, steps.shift, steps.numbers) == ("steps", 70, 430)
    assert steps.value == pytest.approx(1)
    assert steps.pairs == 1 + 2 * (500 - 16)


def test_states_of_generators_are_the_same_until_one_draws():
    found = [torch.Generator(), np.random.default_rng(1), np.random.RandomState(2)]
    states = generators.states_of_all(found)
    other_addresses = [found[0].get_state() for _ in range(3)]
    assert generators.states_of_all(found) == states, other_addresses
    torch.rand(3, generator=found[0])
    changed = [a != b for a, b in zip(generators.states_of_all(found), states, strict=True)]
    assert changed[-3:] == [True, False, False]


def test_a_run_that_waits_for_a_processor_has_more_time(monkeypatch):
    """At most three times as much."""
    now = {"time": 0.0, "waited": 0.0}
    monkeypatch.setattr(run_state.time, "monotonic", lambda: now["time"])
    monkeypatch.setattr(run_state, "waited", lambda: now["waited"])
    clock = run_state.Clock(10.0)
    for time, waited, is_over in [(11, 0, True), (11, 2, False), (29, 28, False), (31, 31, True)]:
        now.update(time=time, waited=waited)
        assert clock.is_over == is_over
        assert clock.waited == waited
