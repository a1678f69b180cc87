"""A GPU's noise, bit for bit, by slow twins; and what is asked of torch before it touches one."""

import multiprocessing
import os

import numpy as np
import pytest
import torch
from scipy import special

from dpaudit_ray.engines import gpu_settings, noise
from dpaudit_ray.engines.noise import GpuNoise
from dpaudit_ray.orchestration.trainer import Brief, PackTrainer
from tests.engines.normals import fitted_coefficients
from tests.long import long

CPU = torch.device("cpu")
WORD = 2**32 - 1
TABLE = noise.coefficients(CPU)
SEED = 0x0123456789ABCDEF_FEDCBA9876543210


@pytest.mark.parametrize(
    ("key", "counter", "expected"),  # of Random123, kat_vectors
    [
        (0, (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (2**64 - 1, (WORD,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            0x299F31D0A4093822,
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_is_what_was_published(key, counter, expected):
    found = noise.philox(key, tuple(torch.tensor([word]) for word in counter))
    assert tuple(int(word) for word in found) == expected == slow_philox(key, counter)


@long("compiles for some 20 s")
def test_a_compiled_kernel_has_the_same_bits():
    write = noise.compiled_writer(CPU)
    for count, numbers in ((5, (0, 3, 0)), (524_289, (2**33, 2**64 - 1, 2**63 + 1))):
        found, expected = torch.empty(count), torch.empty(count)
        write(found, TABLE, *numbers)
        noise.write_normals(expected, TABLE, *numbers)
        assert torch.equal(found, expected)


def test_noise_is_drawn_by_single_operations_where_nothing_compiles(monkeypatch, caplog):
    def no_compiler(*_: object, **__: object) -> object:
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setattr(torch, "compile", no_compiler)
    assert noise._writer.__wrapped__(torch.device("cuda")) is noise.write_normals
    assert "no compiler" in caplog.text
    assert "at all" not in caplog.text


def slow_philox(key: int, counter: tuple[int, ...]) -> tuple[int, ...]:
    """In Python's own integers, as the paper writes it."""
    a, b, c, d = counter
    first, second = key & WORD, key >> 32
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (right >> 32) ^ b ^ first, right & WORD, (left >> 32) ^ d ^ second, left & WORD
        first, second = (first + 0x9E3779B9) & WORD, (second + 0xBB67AE85) & WORD
    return a, b, c, d


def slow_normal(high: int, low: int) -> int:
    """In units, one at a time."""
    known = max(((high & 0x7FFFFFFF) << 32) | low, 1)
    octave = 63 - known.bit_length()
    rest = (known << (octave + 1)) & (2**63 - 1)
    value, *others = np.load(noise.COEFFICIENTS)[octave * noise.PARTS + (rest >> 60)].tolist()
    argument = (rest >> 29) & (2**31 - 1)
    for coefficient in others:
        value = coefficient + ((value * argument + 2**30) >> 31)
    return -value if high >> 31 else value


def test_a_stream_is_that_of_a_slow_twin():
    """Numbers of any dtype, odd counts, and a stream that goes on."""
    stream, block = GpuNoise(SEED, CPU), 0
    for size, dtype in ((5, torch.float32), (4, torch.float64), (1, torch.float32)):
        out = torch.empty(size, dtype=dtype)
        stream.fill(out)
        units: list[int] = []
        for _ in range((size + 1) // 2):
            counter = (block & WORD, block >> 32, SEED >> 64 & WORD, SEED >> 96)
            words = slow_philox(SEED & (2**64 - 1), counter)
            units += [slow_normal(*words[:2]), slow_normal(*words[2:])]
            block += 1
        expected = torch.tensor(units[:size], dtype=torch.int64).to(dtype) * 2.0**-28
        assert torch.equal(out, expected)


def filled(count: int, seed: int = 3, stream: GpuNoise | None = None) -> torch.Tensor:
    """The next numbers of a stream, or the first ones of a seed's."""
    out = torch.empty(count)
    (stream or GpuNoise(seed, CPU)).fill(out)
    return out


def test_it_is_filled_in_any_portions(monkeypatch):
    whole = filled(1001)
    monkeypatch.setattr("dpaudit_ray.engines.noise._BLOCKS_AT_ONCE", 64)
    assert torch.equal(whole, filled(1001))


def test_a_stream_goes_on_from_its_state():
    first, second = GpuNoise(3, CPU), GpuNoise(3, CPU)
    filled(999, stream=first)
    second.restore(first.state())
    assert torch.equal(filled(64, stream=first), filled(64, stream=second))
    with pytest.raises(KeyError):
        second.restore({"sfc64": np.zeros(6, np.uint64)})


def test_the_table_is_what_its_code_computes():
    """Other versions of scipy may round one entry in thousands to the neighbouring unit."""
    stored, found = np.load(noise.COEFFICIENTS), fitted_coefficients()
    assert stored.shape == found.shape == (noise.OCTAVES * noise.PARTS, noise.DEGREE + 1)
    assert np.abs(stored - found).max() <= 1


def test_normals_are_quantiles_in_every_octave():
    """To three units of 2^-28 up to 8.9 standard deviations, to .05 in the two octaves beyond."""
    rng = np.random.default_rng(0)
    for octave in range(noise.OCTAVES):
        tails = [(1 << (62 - octave)) + int(rng.random() * (1 << (62 - octave))) for _ in range(40)]
        high = torch.tensor([tail >> 32 for tail in tails])
        low = torch.tensor([tail & WORD for tail in tails])
        found = noise.normals(high, low, TABLE).numpy() * noise.UNIT
        wanted = -special.ndtri((np.array(tails, dtype=np.float64) + 0.5) / 2.0**64)
        near = 3 * noise.UNIT + 2.0 ** (octave - 62) / wanted  # the half that a tail stands for
        assert np.all(np.abs(found - wanted) <= near), octave
        assert torch.equal(
            noise.normals(high | 1 << 31, low, TABLE), -noise.normals(high, low, TABLE)
        )


def asked(_: int) -> list[str]:
    """What torch is told, in a process whose other code has told it something else."""
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    torch.use_deterministic_algorithms(False)
    backends, lines = torch.backends, []
    backends.cudnn.benchmark, backends.fp32_precision = True, "tf32"
    backends.cuda.matmul.fp32_precision = "none"
    for tf32 in (False, True):
        gpu_settings.fix_numerics(tf32)
        parts = backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn
        lines.append(
            f"{torch.are_deterministic_algorithms_enabled()} "
            f"{torch.is_deterministic_algorithms_warn_only_enabled()} {backends.cudnn.benchmark} "
            f"{ {part.fp32_precision for part in parts} } {os.environ['CUBLAS_WORKSPACE_CONFIG']}"
        )
    return lines


def test_a_process_is_deterministic_in_one_precision():
    """In a process of its own, since the settings are the process's."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        (lines,) = pool.map(asked, [0])
    assert lines == [f"True True False {{'{precision}'}} :4096:8" for precision in ("ieee", "tf32")]


@pytest.mark.parametrize(("gpus", "share"), [(0.25, 0.25), (1, 1.0), (0, 1.0)])
def test_a_trainer_takes_its_share_of_a_gpu(gpus, share, tiny, monkeypatch):
    """As its sweep says: of the memory that torch may take, and of what groups are made for."""
    told: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", told.append)
    monkeypatch.setattr(gpu_settings, "_share", 0.5)
    whole = gpu_settings._BUDGET_BYTES
    tiny["resources"]["num_gpus"] = gpus
    trainer = PackTrainer(tiny, Brief(0, ()))
    assert trainer._sweep.resources.num_gpus == gpus
    assert gpu_settings.budget() == int(share * whole)
    assert told == ([gpus] if 0 < gpus < 1 else [])
