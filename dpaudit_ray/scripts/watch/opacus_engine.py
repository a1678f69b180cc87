"""Records a script's calls of Opacus' engines and accountants, and inspects private networks."""

import collections
import contextlib
import functools
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, RandomSampler, Subset

from ..protocol import ForwardInspection, Made, Report
from . import hooks
from .accountants import history_of
from .forward_passes import Inputs, in_functorch, lies_time_first, mapped_batch, repeat_forward
from .hooks import after, around, before, import_if_there
from .other_updates import note_initial_statistics, note_input
from .publications import digests_of_all_networks
from .run_state import WatchedRun
from .tensors import hex_digest

_NO_HOOKS = "GradSampleModuleNoOp"  # Opacus' class of a network with grad_sample_mode="no_op"
_USUAL_SAMPLERS = {
    "RandomSampler",
    "SequentialSampler",
    "BatchSampler",
    "DistributedSampler",
    "_InfiniteConstantSampler",
    "UniformWithReplacementSampler",
    "DistributedUniformWithReplacementSampler",
}
# Number of forward passes of each network that are inspected.
_INSPECTED_PASSES = 2
_QUESTIONS = ("get_epsilon", "get_privacy_spent")  # accountants' methods that return ε


def install(run: WatchedRun) -> None:
    """Watches engines, accountants and networks from now on, if Opacus is installed."""
    if not import_if_there("opacus"):
        return
    from opacus import PrivacyEngine
    from opacus.accountants import utils
    from opacus.accountants.accountant import IAccountant

    def note_target(*_: Any, **kwargs: Any) -> None:
        """Notes the ε and δ for which a noise multiplier is computed, before `make_private`."""
        networks = run.networks
        networks.delta = kwargs.get("target_delta")
        networks.target = (kwargs.get("target_epsilon"), networks.delta)

    around(PrivacyEngine, "make_private")(functools.partial(_make_private, run))
    before(PrivacyEngine, "make_private_with_epsilon")(note_target)
    before(utils, "get_noise_multiplier")(note_target)

    watch = AccountantWatch(run)
    for accountant_class in _subclasses(IAccountant):
        after(accountant_class, "__init__")(watch.register)
    if run.request.inspects:
        _inspect_forward_passes(run)


def _make_private(
    run: WatchedRun, original: Any, engine: Any, *, module: Any, data_loader: Any, **options: Any
) -> Any:
    """Calls `make_private`, with an additional record if that is requested; records it as `Made`.

    It also notes the tensors that networks have before, so that none of them is later taken for a
    result of private steps.

    Args:
        run: the run.
        original: the method.
        engine: the engine whose method it is.
        module: the network.
        data_loader: loader of the private data.
        options: further arguments of the call.
    """
    networks = run.networks
    loader = one_record_more(data_loader) if run.request.one_more else data_loader
    networks.data.append(loader.dataset)
    networks.accountants.append(engine.accountant)
    networks.modules.append(module)
    networks.rate = 1 / max(1, len(loader))
    if engine.accountant not in run.accountants.of_engines:
        run.accountants.of_engines.append(engine.accountant)
    run.note_line("the sampler", "the accountant", "the data set", "before make_private")
    if run.request.inspects:
        run.publications.before |= digests_of_all_networks()
        if not run.releases:
            note_initial_statistics(run, module, loader.dataset)
    private = original(engine, module=module, data_loader=loader, **options)
    # (module, optimizer, loader), or with the criterion before the loader.
    optimizer = private[1]
    run.loaders.private.append(private[-1])
    networks.batch_first = bool(options.get("batch_first", True))
    records = None
    with contextlib.suppress(TypeError):  # data that come as a stream
        records = len(loader.dataset)
    epsilon, delta = networks.target
    networks.target = (None, None)
    dropped_sampler = ""
    if options.get("poisson_sampling", True):
        dropped_sampler = replaced_sampler(loader)
    entry = Made(
        phase=run.phase,
        records=records,
        batches=len(loader),
        noise=float(optimizer.noise_multiplier),
        expected_batch_size=optimizer.expected_batch_size,
        replaced_sampler=dropped_sampler,
        target_epsilon=epsilon,
        target_delta=delta,
    )
    run.put(entry)
    return private


class AccountantWatch:
    """Records the script's accountants, and the ε that they return to the script."""

    def __init__(self, run: WatchedRun) -> None:
        """Begins without accountants; `register` is called with each new one."""
        self._run = run
        self._wrapped: set[tuple[type, str]] = set()  # classes and names of wrapped methods
        self._is_answering = False  # an accountant computes an ε

    def register(self, accountant: Any, *_: Any, **__: Any) -> None:
        """Records an accountant that was made, and wraps the methods of its classes."""
        accountants = self._run.accountants
        # Opacus' analysis makes accountants to compute with: these count no steps of the script.
        is_for_analysis = _caller().startswith("opacus.accountants.analysis")
        # The constructors of a class and of its base class both call this method.
        if is_for_analysis or any(accountant is other for other in accountants.all):
            return
        accountants.all.append(accountant)
        for owner in type(accountant).__mro__:
            for name in ("load_state_dict", *_QUESTIONS):
                if name not in vars(owner) or (owner, name) in self._wrapped:
                    continue
                self._wrapped.add((owner, name))
                if name in _QUESTIONS:
                    around(owner, name)(functools.partial(self._answer, name))
                else:
                    after(owner, name)(self._load)

    def _load(self, accountant: Any, *_: Any, **__: Any) -> None:
        """Notes the history that an accountant has just loaded from a checkpoint."""
        self._run.accountants.loaded[id(accountant)] = history_of(accountant)

    def _answer(
        self,
        name: str,
        original: Any,
        accountant: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Calls an accountant's method for ε, and notes the answer if the script itself asks.

        Later runs of the audit get the answers of the inspected run, without a call.

        Args:
            name: name of the method, one of _QUESTIONS.
            original: the method.
            accountant: the accountant whose method it is.
            args: arguments of the call.
            kwargs: keyword arguments of the call.
        """
        # Other accountants call the method, too, and functions that search for a noise multiplier.
        if self._is_answering or _caller().startswith(("opacus.accountants", "dpaudit_ray.")):
            return original(accountant, *args, **kwargs)
        run = self._run
        # Each run of an audit asks the same question, and an answer may take a second.
        question = repr((type(accountant).__qualname__, accountant.history, args, kwargs))
        key = hex_digest(question.encode())
        self._is_answering = True
        try:
            # `get_privacy_spent` returns more than the ε that was noted.
            if name == "get_epsilon" and key in run.request.answers:
                answer = np.float64(run.request.answers[key])
            else:
                answer = original(accountant, *args, **kwargs)
        finally:
            self._is_answering = False
        epsilon = float(answer[0] if isinstance(answer, tuple) else answer)
        run.accountants.answers[key] = epsilon
        run.note_line("get_epsilon")
        delta = float(args[0] if args else kwargs["delta"])
        run.accountants.reports.append((accountant, Report(delta, epsilon, run.releases, -1)))
        return answer


def _caller() -> str:
    """Returns the name of the module that called a wrapped function."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename in (__file__, hooks.__file__):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def _inspect_forward_passes(run: WatchedRun) -> None:
    """Inspects the first forward passes of each network from now on.

    Passes of a private network are repeated with another record. The inputs of other networks are
    noted, since private records may train these networks.
    """
    passes = collections.Counter[int]()  # passes of private networks, by identity

    @before(torch.nn.Module, "__call__")
    def forward(module: Any, /, *args: Any, **kwargs: Any) -> None:
        """Inspects a forward pass that is about to happen, if it is one of the first."""
        if not run.inspects:
            return
        # `_NO_HOOKS` calls the `forward` of its network, so the network itself is never called.
        network = module._module if type(module).__name__ == _NO_HOOKS else module
        is_private = any(network is private for private in run.networks.modules)
        is_mapped = in_functorch()
        trains = module.training and (torch.is_grad_enabled() or (is_private and is_mapped))
        is_early = not run.networks.modules
        if not (trains or is_early):
            return
        if is_private:
            passes[id(module)] += 1
            if passes[id(module)] <= _INSPECTED_PASSES:
                inspect = _inspect_mapped if is_mapped else _inspect_forward
                run.put(inspect(run, module, (args, kwargs)))
        elif not is_mapped:  # all passes, as private records may come after many public ones
            note_input(run, module, [*args, *kwargs.values()], trains)


def _inspect_forward(run: WatchedRun, module: Any, inputs: Inputs) -> ForwardInspection:
    """Repeats a pass of a private network with another record in one place.

    It also compares the number of rows with the size of the last draw. Without `batch_first=False`,
    Opacus takes the first dimension for the records, though it may be time.

    Args:
        run: the run.
        module: the private network.
        inputs: arguments and keyword arguments of the pass.
    """
    networks = run.networks
    dim = 0 if networks.batch_first else 1  # along which records lie
    with run.replay():
        entry = repeat_forward(module, inputs, dim)
    iteration = run.loaders.current
    if not networks.batch_first or iteration is None or not iteration.batches:
        return entry
    return replace(entry, time_first=lies_time_first(inputs, len(iteration.batches[-1])))


def _inspect_mapped(run: WatchedRun, _: Any, inputs: Inputs) -> ForwardInspection:
    """Notes how many records each entry has over which `vmap` maps a pass.

    Args:
        run: the run.
        inputs: arguments and keyword arguments of the pass.
    """
    records = mapped_batch(inputs)
    if records is None:
        return ForwardInspection(inconclusive="a forward pass in torch.func without vmap")
    run.networks.records_each = max(run.networks.records_each, records)
    return ForwardInspection()


def replaced_sampler(loader: Any) -> str:
    """Returns the class of an unusual sampler that Opacus drops for Poisson sampling, or ""."""
    for sampler in (loader.sampler, loader.batch_sampler):
        name = type(sampler).__name__
        if sampler is not None and name not in _USUAL_SAMPLERS:
            return name
    return ""


def _subclasses(base: Any) -> list[Any]:
    """Returns all classes that are derived from `base`, at any depth."""
    classes = []
    for child in base.__subclasses__():
        classes += [child, *_subclasses(child)]
    return classes


def one_record_more(loader: Any) -> Any:
    """Returns a loader of the same data and an additional record, a copy of the first one.

    A loader with a custom sampler is returned unchanged.
    """
    if not isinstance(loader.batch_sampler, BatchSampler):
        return loader
    names = ("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn")
    data = loader.dataset
    return DataLoader(
        ConcatDataset([data, Subset(data, [0])]),
        batch_size=loader.batch_sampler.batch_size,
        shuffle=isinstance(loader.sampler, RandomSampler),
        drop_last=loader.drop_last,
        generator=loader.generator,
        **{name: getattr(loader, name) for name in names},
    )
