"""Sampling: draws of the loaders, compared with the sampling that was accounted."""

import math

import numpy as np
from scipy import special

from ...errors import plain
from .. import claims
from ..protocol import Draws, Made, Participation, UnevenStep, entries_of
from ..script_findings import Finding, Judgement, finding
from .check import LEVEL_SHARE, Check, Inspection, at_step, find_uneven

_WHERE = "the sampler"
_FEWEST_DRAWS = 10  # draws from which on the spread of their sizes is informative
_FEWEST_DRAWN = 8.0  # mean number of records in a draw from which on its size is nearly normal
_LIMIT = 6.0  # standard deviations; large, as the law of shared records is only close to normal


class Sampling(Check):
    """Tests draws against independent sampling of each record at the accounted rate."""

    name = "sampling"
    question = "Are records sampled as accounted, and is each sampled record one row of its step?"

    def examine(self, inspection: Inspection, judgement: Judgement) -> Judgement:
        """Adds findings for draws that are not those of the accounted sampling.

        With correlated noise the claim is about how often a record takes part. Otherwise draws of
        loaders are tested, and each sampled record must be one row of a step.
        """
        result = inspection.result
        for make_private_call in entries_of(inspection.record, Made):
            sampler = make_private_call.replaced_sampler
            if sampler:
                where = make_private_call.line or "make_private"
                judgement.find("sampler", where, sampler=sampler)
        participations = entries_of(inspection.record, Participation)
        if participations:
            return _judge_participation(participations, judgement)
        if not result.draws:
            if inspection.is_unsampled:
                return judgement.observe("every record in every step, as accounted")
            why = "no loader was observed: records are sampled by the script's own code"
            if not inspection.uses_opacus:
                why += "; pass their number as of="
            return judgement.miss(why)
        if not claims.events_of(result):
            return judgement.miss("nothing was accounted", applies=False)
        summaries = [_judge_draws(draws, inspection, judgement) for draws in result.draws]
        summary = "; ".join(dict.fromkeys(summaries))
        # Draws without a step, and then steps with another number of gradients than records.
        empty = result.unused.count(0)
        not_empty = len(result.unused) - empty
        if not_empty:
            judgement.find("draws lost", "the loop", count=not_empty)
        if empty:
            judgement.find("empty passed over", _WHERE, count=empty)
        uneven = _unexplained(inspection)
        fewer = [step for step in uneven if step.rows < step.drawn]
        find_uneven(judgement, "records passed over", fewer)
        find_uneven(judgement, "more rows", [step for step in uneven if step.rows > step.drawn])
        if result.copies:
            judgement.find("copies", _WHERE, count=result.copies)
            return judgement.miss(f"{summary}; duplicates in the data were not observed")
        if uneven:
            return judgement.miss(
                f"{summary}; how batches were formed from the sampled records was not observed"
            )
        return judgement.observe(summary)


def _judge_participation(entries: list[Participation], judgement: Judgement) -> Judgement:
    """Compares how often records take part with the claim of correlated noise.

    Args:
        entries: one or more; each has the claim, and some a record that breaks it.
        judgement: takes the finding and the outcome.
    """
    for entry in entries:
        if not entry.has_indices:
            return judgement.miss("the records that take part are not known; pass indices=")
        if entry.record is not None:
            record, first, second = entry.record
            judgement.find(
                "participation",
                at_step(second, entry.line),
                record=record,
                b=entry.separation,
                first=first + 1,
                second=second + 1,
            )
            break
    return judgement.observe(f"each record in every {entries[0].separation}th step, as claimed")


def _judge_draws(draws: Draws, inspection: Inspection, judgement: Judgement) -> str:
    """Judges the draws of one data set at one rate, and describes them in words.

    Args:
        draws: draws of one data set at one rate.
        inspection: inspection of the script.
        judgement: takes findings.
    """
    result = inspection.result
    rate = draws.rate or max(rate for _, rate, _ in claims.events_of(result))
    draw_count = len(draws.sizes)
    if rate >= 1:
        # Without amplification a record may be in as many steps as were accounted.
        most = draws.most or 0  # 0 if indices were not recorded
        if most > inspection.counted:
            judgement.find("too often", _WHERE, counted=inspection.counted, most=most)
        return f"each record in up to all {draw_count} steps, as accounted"
    failed = _failed_test(draws, rate, LEVEL_SHARE / len(result.draws), inspection)
    if failed is not None:
        judgement.findings.append(failed)
    drawn_rate = sum(draws.sizes) / max(draws.records * draw_count, 1)
    return f"{draw_count} draws at a rate of {drawn_rate:.4g}"


def _unexplained(inspection: Inspection) -> list[UnevenStep]:
    """Returns the steps in which the numbers of rows and of sampled records differ without reason.

    A reason is that all steps use the same part of their batch, or have the same number of
    additional rows. But if another loader draws as many, these rows may be records.
    """
    uneven = inspection.result.uneven
    steps = [step for step in uneven if step.passes == 1 and step.records_each == 1]
    parts = {step.drawn / step.rows if step.rows else 0.0 for step in steps}
    is_constant_part = len(parts) == 1 and min(parts) > 1 and min(parts).is_integer()
    # The number of made-up rows, in addition to those of records, is the same in all batches.
    differences = {step.rows - step.drawn for step in steps}
    # With batches of one size only, the additional rows may as well be copies of the records.
    is_constant_sum = len(differences) == 1 < len(parts) and min(differences) > 0
    is_constant_sum &= differences.isdisjoint(inspection.result.beside)
    if (is_constant_part or is_constant_sum) and len(steps) >= inspection.taken:
        return []
    return steps


def _failed_test(
    draws: Draws,
    rate: float,
    level: float,
    inspection: Inspection,
) -> Finding | None:
    """Returns a finding for the first test that the draws fail; independent draws would pass all.

    Args:
        draws: draws of one data set.
        rate: rate that was accounted, below 1.
        level: probability of a false alarm, of all tests together.
        inspection: inspection of the script, for its claim.
    """
    n = draws.records
    draw_count = len(draws.sizes)
    total = sum(draws.sizes)
    most = n * draw_count  # the total if each draw had all records
    drawn_rate = min(rate, total / max(most, 1))  # a lower rate than accounted is allowed
    mean = n * drawn_rate
    # Pearson's statistic of the sizes: chi-squared if records are sampled independently.
    variance = max(mean * (1 - drawn_rate), 1e-9)
    spread = sum((size - mean) ** 2 for size in draws.sizes) / variance
    is_near_normal = mean >= _FEWEST_DRAWN
    is_narrow = (
        draw_count >= _FEWEST_DRAWS and special.gammainc(draw_count / 2, spread / 2) < level / 6
    )
    is_wide = special.gammaincc(draw_count / 2, spread / 2) < level / 6
    if total > 0 and special.bdtrc(total - 1, most, rate) < level / 3:
        return finding(
            "rate",
            _WHERE,
            rate=rate,
            share=total / most,
            total=total,
            draws=draw_count,
            records=n,
        )
    if draws.twice:
        return finding("twice", _WHERE, count=draws.twice)
    deviation = _shared_records(draws, drawn_rate)
    if deviation < -_LIMIT:  # too few records in common
        shuffled = "shuffled: each record once in a pass"
        return _judge_without_poisson(shuffled, rate, round(1 / rate), inspection)
    if is_near_normal and is_narrow:
        return _judge_without_poisson("of a fixed size", rate, 1, inspection)
    empty = (1 - rate) ** n
    log_without_empty = draw_count * math.log1p(-min(empty, 1 - 1e-12))
    if 0 not in draws.sizes and log_without_empty < math.log(level / 6):
        return finding("no empty", _WHERE, expected=draw_count * empty)
    is_dependent = deviation > _LIMIT or (is_near_normal and is_wide)
    if is_dependent or _is_uneven(draws, rate, level / 6):
        return finding("dependent", _WHERE, rate=rate)
    return None


def _is_uneven(draws: Draws, rate: float, level: float) -> bool:
    """Returns whether some records are drawn more often than at `rate`, and others less.

    The squared deviations of the records' counts are added up. Their sum is compared with a gamma
    law that has the mean and variance of the sum for binomial counts. If all records together are
    drawn at a lower rate, no count shows that a record is drawn at a higher rate.

    Args:
        draws: draws of one data set.
        rate: rate that was accounted, below 1.
        level: probability of a false alarm.
    """
    n = draws.records
    count = len(draws.sizes)
    total = sum(draws.sizes)
    mean = count * rate
    variance = mean * (1 - rate)
    is_lower = special.bdtr(total, n * count, rate) < level
    if draws.squares is None or mean < 1 or is_lower:
        return False
    # The mean of `square` is n times the variance.
    square = draws.squares - 2 * mean * total + n * mean**2
    # The excess kurtosis of a binomial count: with it, mean² / variance of the sum is
    # n / (2 + kurtosis), which is the shape of the gamma law.
    kurtosis = (1 - 6 * rate * (1 - rate)) / variance
    shape = n / (2 + kurtosis)
    return bool(special.gammaincc(shape, square / (n * variance) * shape) < level)


def _shared_records(draws: Draws, rate: float) -> float:
    """Returns how many standard deviations above its mean the number of shared records is.

    It is the number of pairs of draws in one window that share a record; its mean and deviation are
    those of independent draws.

    Args:
        draws: draws of one data set.
        rate: rate at which a draw has a record.
    """
    if draws.windows == 0:
        return 0.0
    # Numbers of times that a record may be drawn in a window, and their binomial probabilities.
    # A record comes once on average, so that more than 60 times hardly occur.
    k = np.arange(min(draws.window, 60) + 1, dtype=np.float64)
    probability = special.binom(draws.window, k) * rate**k * (1 - rate) ** (draws.window - k)
    pairs = k * (k - 1) / 2
    mean = float(probability @ pairs)
    variance = float(probability @ pairs**2) - mean**2
    n = draws.records * draws.windows
    return float((draws.shared - n * mean) / math.sqrt(max(n * variance, 1e-300)))


def _judge_without_poisson(
    sampling: str,
    rate: float,
    steps_in_pass: int,
    inspection: Inspection,
) -> Finding:
    """Returns a finding for draws that are not Poisson samples: claim violated, or only not proven.

    Accountants prove claims for Poisson sampling. For draws of another kind, the worst known
    neighbouring data give a lower bound on δ at the ε of the claim. If the bound is above δ of the
    claim, the claim is violated.

    Args:
        sampling: kind of the draws, in words.
        rate: rate at which a step has a record.
        steps_in_pass: steps of which exactly one has a record; 1 if each step draws anew.
        inspection: inspection of the script, for its claim.
    """
    result = inspection.result
    delta = inspection.delta
    least_noise = min(noise for noise, _, _ in claims.events_of(result))
    epsilon = claims.stated(result, delta)
    passes = max(1, inspection.taken // steps_in_pass)
    reached = delta_without_poisson(epsilon, least_noise, rate, steps_in_pass, passes)
    if reached <= delta:
        return finding("not proven", _WHERE, how=sampling, rate=rate)
    return finding(
        "not Poisson",
        _WHERE,
        how=sampling,
        rate=rate,
        epsilon=epsilon,
        reached=plain(reached, ".2g"),
        delta=plain(delta, ".2g"),
    )


def delta_without_poisson(
    epsilon: float, noise: float, rate: float, group: int, times: int
) -> float:
    """Returns a lower bound on δ at `epsilon` for draws without Poisson sampling, by one event.

    The record's gradient is C, and 0 in the neighbouring data; those of all other records are −C.
    The event is that in k or more of `times` groups the sum of some step exceeds h. Groups are
    independent. For a single group the bound is that of Chua et al. 2024 for shuffled batches.

    Args:
        epsilon: ε of the claim.
        noise: noise multiplier.
        rate: rate at which a step has the record, if a group has one step.
        group: number of steps of which one has the record; 1 for batches of a fixed size.
        times: number of groups in a run.
    """
    h = np.linspace(-2, 10, 400) * noise  # tried thresholds; each gives a valid bound
    below = special.ndtr(h / noise)
    # Compared with a step of other records only, the record's step has a sum that is larger by 2 C,
    # or by C in the neighbouring data.
    below_with_record = [special.ndtr((h - shift) / noise) for shift in (2.0, 1.0)]
    if group > 1:
        chances = [1 - below ** (group - 1) * record for record in below_with_record]
    else:
        chances = [1 - (1 - rate) * below - rate * record for record in below_with_record]
    # Shares of the groups that are tried as k.
    shares = (int(times * share) for share in (0.1, 0.2, 0.4, 0.7))
    best = 0.0
    for k in sorted({1, 2, 3, 5, *shares, times}):
        if 1 <= k <= times:
            first, second = (special.bdtrc(k - 1, times, chance) for chance in chances)
            best = max(best, float(np.max(first - np.exp(epsilon) * second)))
    return best
