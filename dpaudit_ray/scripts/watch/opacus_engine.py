"""What a script asks of Opacus' privacy engines, and what their accountants have counted."""

from __future__ import annotations

import time
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from .run_state import Run

_SECONDS = 5.0  # that an accountant may take for further δ


def install(run: Run) -> None:
    """Watches engines and accountants that are made from now on."""
    from opacus import PrivacyEngine
    from opacus.accountants.accountant import IAccountant

    make, prepare = PrivacyEngine.make_private, PrivacyEngine.__init__
    for kind in _kinds(IAccountant):
        _register(kind, run)

    def made(self: Any, **kwargs: Any) -> Any:
        run.made += 1
        if run.asked.one_more:
            kwargs["data_loader"] = one_more(kwargs["data_loader"])
        loader = kwargs["data_loader"]
        run.data.append(loader.dataset)
        run.modules.append(kwargs["module"])
        run.rate = 1 / max(1, len(loader))
        found = make(self, **kwargs)
        optimizer = found[1]
        run.loaders.private.append(found[-1])
        run.batch_first = bool(kwargs.get("batch_first", True))
        run.recorder.put(
            "made", phase=run.phase, records=_length(loader.dataset), batches=len(loader),
            poisson=bool(kwargs.get("poisson_sampling", True)), noise=optimizer.noise_multiplier,
            batch=optimizer.expected_batch_size, rate=run.rate,
            size=sum(p.numel() for p in optimizer.params), bound=_number(optimizer.max_grad_norm),
        )  # fmt: skip
        return found

    def prepared(self: Any, *args: Any, **kwargs: Any) -> None:
        prepare(self, *args, **kwargs)
        run.engines.append(self.accountant)

    PrivacyEngine.make_private = made
    PrivacyEngine.__init__ = prepared


def claims(run: Run, deltas: list[float], first: float | None) -> list[dict[str, Any]]:
    """ε that each accountant gives at each δ, at `first` first; None where it fails.

    Where it is slow, as with noise that changes at every step, only that one is asked for.
    """
    found = []
    for one in run.own_accountants():
        entry: dict[str, Any] = {"name": one.mechanism(), "history": _history(one)}
        began = time.monotonic()
        answers: dict[float, float | None] = {}
        for delta in sorted(deltas, key=lambda delta: delta != first):
            slow = answers and time.monotonic() - began > _SECONDS
            answers[delta] = None if slow else _epsilon(one, delta)
        found.append(entry | {"deltas": deltas, "epsilons": [answers[each] for each in deltas]})
    return found


def _kinds(base: Any) -> list[Any]:
    return [each for kind in base.__subclasses__() for each in (kind, *_kinds(kind))]


def _register(kind: Any, run: Run) -> None:
    """Accountants of the script's own count too, where it uses no engine."""
    original, answer = kind.__init__, kind.get_epsilon

    def begun(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not run.asking and not any(self is one for one in run.accountants):
            run.accountants.append(self)

    def asked(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, run.asking = run.asking, True  # one accountant may ask another
        try:
            return answer(self, *args, **kwargs)
        finally:
            run.asking = before

    kind.__init__, kind.get_epsilon = begun, asked


def one_more(loader: Any) -> Any:
    """The same loader over a record more: a copy of the first."""
    data = _OneMore(loader.dataset)
    rest = {
        name: getattr(loader, name)
        for name in ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn")
    }
    sampler = loader.sampler
    shuffled = isinstance(sampler, RandomSampler)
    if not isinstance(loader.batch_sampler, BatchSampler):
        return loader
    return DataLoader(
        data, batch_size=loader.batch_sampler.batch_size, shuffle=shuffled,
        drop_last=loader.drop_last, generator=loader.generator, **rest,
    )  # fmt: skip


class _OneMore(Dataset[Any]):
    def __init__(self, data: Any) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data) + 1

    def __getitem__(self, index: int) -> Any:
        return self._data[index if index < len(self._data) else 0]


def _history(accountant: Any) -> list[list[float]]:
    return [[float(value) for value in entry] for entry in accountant.history]


def _epsilon(accountant: Any, delta: float) -> float | None:
    if not accountant.history:
        return 0.0
    try:
        return float(accountant.get_epsilon(delta=delta))
    except Exception:  # noqa: BLE001 (an accountant of somebody else's: what it cannot tell is None)
        return None


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except TypeError:
        return None


def _number(bound: Any) -> float:
    parts = bound if isinstance(bound, (list, tuple)) else [bound]
    return float(sum(float(one) ** 2 for one in parts) ** 0.5)
