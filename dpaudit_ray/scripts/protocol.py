"""Messages between a watched run of a script and the checks that judge it.

A run appends entries to a record, a file of JSON lines, as it runs: a run that is killed leaves
those of its steps so far. At its end it returns a `RunResult`. Both sides see the same dataclasses,
so a misspelt field is an error of types, and never a check that is silently not done. The watched
process imports this module in the script's environment: it needs the standard library alone.
"""

import functools
import hashlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from ..opacus import Marks

_LARGEST_RECORD = 2**30  # bytes; a look at a step takes some kilobytes

# What a value that is returned or saved carries in addition to releases.
Leftover = Literal[
    "gradients",  # a gradient of a private parameter that was never released
    "others",  # a gradient of a parameter of no private network
    "examples",  # gradients of single records
    "saved",  # gradients of single records in a file
    "records",  # its rows are records of the data
    "earlier",  # it is a parameter as an earlier step left it
    "states",  # the state of a random generator
    "statistics",  # it is a mean, deviation or extreme of the records
    "tensors",  # it is neither a private parameter nor what some network had before
]
Texts = tuple[str, ...]
Integers = tuple[int, ...]
History = tuple[tuple[float, float, int], ...]  # (σ, q, steps), as accountants of Opacus have it


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """Tasks of a watched run, in addition to training the model.

    Attributes:
        seed: seed of all coins and canaries.
        inspects: steps are replayed with other noise and other examples.
        canary: "steps" adds a canary to about half of the steps, by coins; "run" to all or none.
        member: whether the steps of a "run" canary have it.
        reseeds: constants that the script seeds generators with are mixed with `seed`.
        most_steps: number of releases after which the run ends.
        seconds: the run ends at its first release after this time.
        one_more: the data set gets an additional record.
        pinned: releases are replaced by pseudorandom numbers. "unchanged" changes nothing else;
            "exchanged" has another record in place of `record`; "varied" exchanges a record of
            each batch, or leaves one out; "halved" has one record in place of every other;
            "other_noise" has other noise in the steps with `record`; "other_randomness" has other
            random numbers after them; "followed" has rows of `arrays` changed.
        record: index of the record that a pinned run is about; None if the run is about a record
            of each batch, or chooses the record itself.
        tables: digests of the data set's arrays. The "exchanged" run has other records in half of
            them until training is private.
        answers: ε that accountants gave an earlier run, by a digest of the question.
        follows: the script's arrays are listed until training is private.
        arrays: digests of arrays of which rows are changed where they appear. The run then ends
            where training becomes private.
        targets: indices of the changed rows; empty if rows with the extremes of columns change.
        sources: indices of the rows whose values the targets get; empty if all targets get the
            values of the row in the middle.
    """

    seed: int
    inspects: bool = False
    canary: Literal["", "steps", "run"] = ""
    member: bool = False
    reseeds: bool = False
    most_steps: int | None = None
    seconds: float | None = None
    one_more: bool = False
    pinned: Literal[
        "",
        "unchanged",
        "exchanged",
        "varied",
        "halved",
        "other_noise",
        "other_randomness",
        "followed",
    ] = ""
    record: int | None = None
    tables: Texts = ()
    answers: dict[str, float] = field(default_factory=dict)
    follows: bool = False
    arrays: Texts = ()
    targets: Integers = ()
    sources: Integers = ()

    def is_about(self, draw: Any) -> bool:
        """Returns whether a pinned run changes something in the step that has these records.

        Args:
            draw: indices of the step's records.
        """
        if self.record is None:  # the run changes a record of each batch
            return self.pinned != "unchanged"
        return self.record in draw

    def derived(self, *label: str | int) -> int:
        """Derives a seed of 63 bits from the run's seed and a label.

        Args:
            label: texts and numbers that name the purpose of the seed.
        """
        name = "\x1f".join(map(str, ("script", self.seed, *label)))
        digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
        return int.from_bytes(digest, "big") % 2**63

    def coin(self, chance: float, *label: str | int) -> bool:
        """Throws a biased coin, which always falls the same way for the same run and label.

        Args:
            chance: probability of True.
            label: texts and numbers that name what the coin decides.
        """
        return random.Random(self.derived("coin", *label)).random() < chance


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Line of a record. `line` is the script's line that was running, as file:number, or ""."""

    line: str = ""


@dataclass(frozen=True, kw_only=True)
class Made(Entry):
    """A call of `make_private`.

    Attributes:
        phase: phase of the run: "import" while the script is imported, else "main".
        records: number in the data set; None for data that come as a stream.
        batches: number of batches of one walk through the private loader.
        noise: noise multiplier.
        expected_batch_size: mean number of records in a batch; None if it is not stated.
        replaced_sampler: class of a sampler that Opacus drops; "" if it is a usual one.
        target_epsilon: ε for which the noise was computed; None if the script passes none.
        target_delta: δ of that ε.
    """

    phase: str
    records: int | None
    batches: int
    noise: float
    expected_batch_size: float | None
    replaced_sampler: str = ""
    target_epsilon: float | None = None
    target_delta: float | None = None


# Changes of one example, in words. A record without a gradient should move no release.
EMPTY = "a record without a gradient"
# Begins the words for a record whose values are multiplied, so that it may be longer than any
# record of the data can be. The factor follows.
WILD = "a record with values"


@dataclass(frozen=True)
class Shift:
    """Effect of a change of one example on a release.

    Attributes:
        change: what was changed, in words.
        squares: squared distance that the release moved, by tensor.
    """

    change: str
    squares: tuple[float, ...]


@dataclass(frozen=True)
class Correlation:
    """The most striking correlation of `pairs` pairs of noise vectors of one kind.

    Attributes:
        kind: whether vectors are of two "steps", of two "tensors" of a step, or are "neighbours"
            in one tensor.
        between: the two steps or tensors, each by its number; for neighbours their tensor twice.
        numbers: length of each vector.
        value: the correlation, in [-1, 1].
        pairs: how many pairs were compared.
        shift: entry i of the first vector is compared with entry i + shift of the second.
    """

    kind: Literal["steps", "tensors", "neighbours"]
    between: tuple[int, int]
    numbers: int
    value: float
    pairs: int
    shift: int = 0


@dataclass(frozen=True)
class LawDistance:
    """Kolmogorov distance of standardised noise from the normal law, over `numbers` numbers.

    `is_added`: as far as was tested, a record moves the release equally far whatever the noise is.
    """

    distance: float
    numbers: int
    is_added: bool = True

    @property
    def probability(self) -> float:
        """Bound on the probability that normal noise is so far from its law.

        Dvoretzky, Kiefer, Wolfowitz; Massart 1990, corollary 1.
        """
        return 2 * math.exp(-2 * self.numbers * self.distance**2)


@dataclass(frozen=True, kw_only=True)
class StepInspection(Entry):
    """Replay of one step; lists have an entry for each tensor of its release.

    Attributes:
        optimizer: number of the optimizer or call site.
        noise: noise multiplier that the step's own call states; None if it states none.
        names: names of the tensors.
        sizes: how many numbers each tensor has.
        bound: length of a clipped gradient in what is released, if known.
        norms: squared lengths of the release; inf if it is not finite.
        ghost: the step uses ghost clipping, which never computes a record's gradient.
        replays: whether the same generators gave the same release. If not, the attributes below
            are empty.
        draws: how many times the noise was drawn.
        squares: squared distance of the draws from their mean.
        shifts: how far changes of one example moved the release.
        without_noise: indices of tensors in which some number changes with a record, but is the
            same in all draws of the noise.
        correlations: the most striking correlations of noise vectors.
        law: distance of the noise from the normal law; None if it is not known.
        counts: the last number of the release is a count that sets the clipping bound.
        has_gaps: some numbers of a release are zero in many draws, and not in others.
    """

    step: int
    optimizer: int
    names: Texts
    sizes: Integers
    norms: tuple[float, ...]
    noise: float | None = None
    bound: float | None = None
    ghost: bool = False
    replays: bool = True
    draws: int = 0
    squares: tuple[float, ...] = ()
    shifts: tuple[Shift, ...] = ()
    without_noise: Integers = ()
    correlations: tuple[Correlation, ...] = ()
    law: LawDistance | None = None
    counts: bool = False
    has_gaps: bool = False


@dataclass(frozen=True, kw_only=True)
class GhostInspection(Entry):
    """Backward pass of ghost clipping.

    Attributes:
        step: number of the pass's step, from 0.
        longest: length of the longest clipped gradient of one record.
        change: the record with that gradient, and the factor of its loss, in words.
        bound: the clipping bound.
    """

    step: int
    longest: float
    change: str
    bound: float


@dataclass(frozen=True, kw_only=True)
class ForwardInspection(Entry):
    """A forward pass, repeated with another record in one place.

    Attributes:
        mixes: whether outputs of other records changed.
        relative_change: largest change of an output of other records, relative to the largest
            output.
        time_first: records lie along the second dimension, as many as were drawn.
        buffers: names of buffers that learn from records.
        inconclusive: why the repeats show nothing; "" if they do.
    """

    mixes: bool = False
    relative_change: float = 0.0
    time_first: bool = False
    buffers: Texts = ()
    inconclusive: str = ""


@dataclass(frozen=True, kw_only=True)
class Trial(Entry):
    """Outcome of a step with a canary or without.

    Attributes:
        member: whether the step had the canary.
        score: how far the release lies in the canary's direction; its mean is 1 with it, else 0.
        noise: noise multiplier that the step was accounted with, the standard deviation of the
            score; None if it is unknown.
        rate: sampling rate that the step was accounted with; None if it is unknown.
    """

    member: bool
    score: float
    noise: float | None
    rate: float | None


@dataclass(frozen=True, kw_only=True)
class Cut(Entry):
    """The time budget ended the run after this number of steps."""

    steps: int


@dataclass(frozen=True, kw_only=True)
class CarriedSum(Entry):
    """A step adds to a sum of gradients that another walk through the data left."""

    step: int


Limit = Literal["sum", "noise", "draws", "again", "numbers", "bounded"]


@dataclass(frozen=True, kw_only=True)
class ArraysGiven(Entry):
    """Something at a step of a custom loop that limits what can be checked.

    Attributes:
        kind: "sum": the clipped sum was passed as an array, so the audit cannot change records in
            it. "noise": likewise the noise, which cannot be drawn again. "draws": random numbers
            are drawn for each record, and not only for noise. "again": the generators are in a
            state from which an earlier step drew its noise. "numbers": records are numbers of rows.
            "bounded": records seem to have been shortened or cut before the step.
    """

    kind: Limit


@dataclass(frozen=True, kw_only=True)
class Participation(Entry):
    """Claim of correlated noise that a record takes part every `separation` steps.

    Attributes:
        separation: number of steps from one in which a record takes part to the next.
        has_indices: steps state the indices of their records.
        record: index of a record that breaks the claim, with two steps that it takes part in;
            None if no record is known to break it.
    """

    separation: int
    has_indices: bool = True
    record: tuple[int, int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class PinnedStep(Entry):
    """A step of a pinned run.

    Attributes:
        member: the step has the record that is exchanged; False in a run that chooses the record.
        change: change of this step's batch, in words; "" if the run makes the same in all steps.
        missing: position in the batch of the record that was left out.
        release: digests of what the step would have released.
        length: length of what the step would have released, if Opacus' optimizer took the step.
        numbers: how many numbers that is.
        update: digests of the gradients that reached the optimizer. They are the pinned gradients
            if nothing came in between.
        rows: length of each example's gradient.
        rounding: relative distance of neighbouring numbers of the gradients' type.
        state: digests of the generator's state and of the parameters before the step, and the
            clipping bound.
        drawn: number of records in the batch.
        bound: the clipping bound.
    """

    member: bool
    release: Texts
    length: float = 0.0
    numbers: int = 0
    update: Texts = ()
    rows: tuple[float, ...] = ()
    rounding: float = 0.0
    state: str = ""
    drawn: int = 0
    bound: float = 0.0
    change: str = ""
    missing: int | None = None


@dataclass(frozen=True)
class Appeared:
    """An array of the script, as it first appeared in the script's variables.

    Attributes:
        digest: digest of its values at that time.
        rows: number of its rows.
        event: number of lines and returns of the script that were traced until then.
        line: the script's line that made it.
        is_grown: it is a table that appeared before, and now has more columns.
    """

    digest: str
    rows: int
    event: int
    line: str
    is_grown: bool = False


SUMMARY = 3  # numbers that summarise a record
Summary = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class Prepared(Entry):
    """Data of a script at the time when training became private.

    Attributes:
        targets: indices of the rows that were changed.
        settings: settings of training, as texts by their names.
        arrays: arrays that the script had until then.
        records: summary of each record. Its numbers are random combinations of all the record's
            values. If a data set draws random numbers when a record is read, it draws the same
            ones for all records; only for the last number of a summary they depend on the index.
    """

    targets: Integers = ()
    settings: dict[str, str] = field(default_factory=dict)
    arrays: tuple[Appeared, ...] = ()
    records: tuple[Summary, ...] = ()


@dataclass(frozen=True)
class Claim:
    """Statement of one accountant: the steps that it counted, and ε at each δ.

    Attributes:
        name: name of the accountant's mechanism.
        history: the steps that it counted.
        deltas: values of δ.
        epsilons: its ε at each of them; None where it fails.
        data: number of the group of data that the accountant's engine trains on. Engines whose
            data share a record have the same number.
        loaded: the part of the history that was loaded from a checkpoint.
    """

    name: str
    history: History
    deltas: tuple[float, ...] = ()
    epsilons: tuple[float | None, ...] = ()
    data: int = 0
    loaded: History = ()


@dataclass(frozen=True)
class AccountedStep:
    """Noise multiplier and sampling rate that one release was accounted with.

    The release is step `step` of the optimizer or call site with the number `optimizer`.
    """

    optimizer: int
    step: int
    noise: float
    rate: float


@dataclass(frozen=True)
class Report:
    """An ε that the accountant of claim number `claim` gave the script, after `steps` releases.

    `claim` is negative for an accountant that no engine has, and another number for each of these.
    """

    delta: float
    epsilon: float
    steps: int
    claim: int


@dataclass(frozen=True)
class Draws:
    """Counts of the draws of one data set at one rate; see `draw_counts`.

    Attributes:
        records: number of records in the data set.
        sizes: records in each draw.
        rate: rate that the draws were accounted with; None if no accountant states it.
        window: number of draws in which each record comes once on average.
        windows: number of such windows among the draws.
        shared: pairs of draws of one window that share a record.
        most: draws that the most frequent record is in; None if indices were not recorded.
        squares: sum over records of the squared number of draws that the record is in; None if
            indices were not recorded.
        twice: records drawn into a batch they were in already.
    """

    records: int
    sizes: Integers
    rate: float | None = None
    window: int = 0
    windows: int = 0
    shared: int = 0
    most: int | None = None
    squares: int | None = None
    twice: int = 0


@dataclass(frozen=True)
class UnevenStep:
    """A step with another number of per-example gradients than records were drawn.

    Attributes:
        rows: number of the gradients.
        drawn: number of the records.
        passes: backward passes that gave the gradients.
        records_each: most records that one gradient is of, by the forward passes under vmap.
    """

    step: int
    rows: int
    drawn: int
    passes: int = 1
    records_each: int = 1


@dataclass(frozen=True)
class OutsideSteps:
    """Steps of an optimizer that no engine wraps.

    `when`: "before" or "after" training became private. `private`: the optimizer updates
    parameters of a private network, with these `names`.
    """

    when: Literal["before", "after"]
    private: bool
    optimizer: str
    names: Texts
    steps: int


@dataclass(frozen=True)
class StartedProcesses:
    """Number of processes of one kind that the script started at one line; none is watched."""

    process: str
    line: str
    count: int


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """Knowledge at the end of a run.

    Attributes:
        made: number of calls of `make_private`.
        steps: number of releases of each optimizer or call site.
        claims: claims of the accountants whose claim is the script's.
        accounted: noise and rate of each release, as far as it was accounted.
        reported: each ε that the script was given.
        answers: ε that accountants gave, by a digest of the question.
        draws: counts of the draws of each data set at each rate.
        unused: sizes of draws that led to no step.
        beside: sizes of draws of other loaders, since a private loader drew.
        uneven: steps with another number of gradients than records were drawn.
        pretrained: private parameters that the records trained before, without noise.
        other_networks: classes of other networks that the records trained without noise.
        had_early_records: the private network got records before training was private.
        tables: digests of the data sets' arrays.
        common_scale: in words, what all columns have in common if each was scaled by its own
            values; "" if they have nothing in common.
        has_norms: ghost clipping computed the lengths of gradients.
        initial_statistics: private parameters that began as statistics of the records.
        outside_steps: steps of optimizers that no engine wraps.
        processes: processes that the script started, and that are not watched.
        seeded: generators seeded with constants, as "torch.manual_seed(3)".
        noise_seeds: first seeds of the optimizers' own generators.
        published: names and digests of values that a pinned run returns, saves or decides by.
        chosen: index of the record that pinned runs exchange; None if no record was chosen.
        chosen_as: why that record was chosen, such as "the longest record".
        copies: records of the first batches that equal another record.
        lines: the script's line for each place that a finding names.
        leftovers: names of values that are returned or saved, by what they carry.
        publishes_more: other values than the numbers of networks are returned or saved.
        inspecting: seconds that the watcher took.
        waited: seconds that the run waited for a processor.
        returned_nothing: the function returned None.
        sources: SHA-256 of the script and of the modules in its folder, by their paths from there.
        versions: versions of Python and of packages that the script computes with, by their names.
        marks: what the script states by `@audited`.
    """

    made: int = 0
    steps: Integers = ()
    claims: tuple[Claim, ...] = ()
    accounted: tuple[AccountedStep, ...] = ()
    reported: tuple[Report, ...] = ()
    answers: dict[str, float] = field(default_factory=dict)
    draws: tuple[Draws, ...] = ()
    unused: Integers = ()
    beside: Integers = ()
    uneven: tuple[UnevenStep, ...] = ()
    pretrained: Texts = ()
    other_networks: Texts = ()
    had_early_records: bool = False
    tables: Texts = ()
    common_scale: str = ""
    has_norms: bool = False
    initial_statistics: Texts = ()
    outside_steps: tuple[OutsideSteps, ...] = ()
    processes: tuple[StartedProcesses, ...] = ()
    seeded: Texts = ()
    noise_seeds: Integers = ()
    published: tuple[tuple[str, str], ...] = ()
    chosen: int | None = None
    chosen_as: str = ""
    copies: int = 0
    lines: dict[str, str] = field(default_factory=dict)
    leftovers: dict[Leftover, list[str]] = field(default_factory=dict)
    publishes_more: bool = False
    inspecting: float = 0.0
    waited: float = 0.0
    returned_nothing: bool = False
    sources: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    marks: Marks = field(default_factory=Marks)

    @property
    def unwatched_processes(self) -> str:
        """Clause that names the processes which the script has started, if any."""
        names = [f"{kind.count} {kind.process}, {kind.line}" for kind in self.processes]
        return f"processes that it starts ({'; '.join(names)}) were not observed"


Record = Sequence[Entry]
E = TypeVar("E", bound=Entry)
# Classes of entries by the name that their lines have under "entry".
_KINDS: dict[str, type[Entry]] = {kind.__name__: kind for kind in Entry.__subclasses__()}


def encode(entry: Entry) -> str:
    """Returns an entry as one line of JSON."""
    return json.dumps({"entry": type(entry).__name__} | asdict(entry))


def entries_of(record: Record, kind: type[E]) -> list[E]:
    """Returns the entries of one kind, in their order."""
    return [entry for entry in record if isinstance(entry, kind)]


def decode_result(value: Any) -> RunResult:
    """Returns a result from the plain values of its JSON. Raises ValueError if they do not fit."""
    result: RunResult = _adapter(RunResult).validate_python(value)
    return result


def read_record(file: Path) -> Record:
    """Reads a record; leaves out a last line that is incomplete since the run was killed.

    Raises:
        ValueError: the file is too large, or an entry does not fit its class.
    """
    if not file.exists():
        return []
    if (size := file.stat().st_size) > _LARGEST_RECORD:
        raise ValueError(f"the run's record has {size} bytes, and {_LARGEST_RECORD} are read")
    entries = []
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            fields = json.loads(line)
        except ValueError:
            break
        entry_class: Any = _KINDS[fields.pop("entry")]
        entries.append(_adapter(entry_class).validate_python(fields))
    return entries


@functools.cache
def _adapter(dataclass_type: Any) -> Any:
    """Returns pydantic's adapter that makes a dataclass of plain values, or raises ValueError."""
    # The judge alone reads, in the tool's own environment; the watched process has no pydantic.
    import pydantic

    return pydantic.TypeAdapter(dataclass_type)
