"""All audited functions. Records are at the corners of their bounds; claims follow arguments."""

import math

from dpaudit_ray import Claim

from .entry import Entry, Pairs, added, replaced, values

EPSILON = 1.0
DELTA = 1e-5
PURE = Claim(epsilon=EPSILON)
APPROXIMATE = Claim(epsilon=EPSILON, delta=DELTA)
UNIT = (0, 1)  # bounds of records
CATEGORIES = 4  # of local randomisers
# Records of two classes; in the second input one of class 0 has moved to the far corner.
CLASSES = [[0.0, 0], [0.0, 0], [1.0, 1], [1.0, 1]]
MOVED = [[1.0, 0], [0.0, 0], [1.0, 1], [1.0, 1]]
# Points of a line, without and with one at the far corner.
LINE = [[1.0, 1.0]] * 3


def _diffprivlib() -> list[Entry]:
    def entry(function: str, label: str, pairs: Pairs, **arguments: object) -> Entry:
        options = {"epsilon": EPSILON, **arguments}
        claim = APPROXIMATE if "delta" in arguments else PURE
        return Entry(
            f"diffprivlib {label}",
            "diffprivlib",
            function,
            options,
            claim,
            pairs,
            delta=DELTA if "delta" in arguments else 0.0,
        )

    bounds = list(UNIT)
    statistics = [
        entry("tool", name, replaced(*UNIT), name=name, bounds=bounds)
        for name in ("mean", "sum", "var", "std")
    ]
    statistics += [
        entry("tool", "median", replaced(*UNIT), name="median", bounds=bounds),
        entry("tool", "count_nonzero", replaced(*UNIT), name="count_nonzero"),
        entry("histogram", "histogram", added(*UNIT), bins=2, range=bounds),
    ]
    on_numbers = [
        entry("mechanism", name, values(0.0, 1.0), name=name, **options)
        for name, options in {
            "Laplace": {"sensitivity": 1.0},
            "LaplaceTruncated": {"sensitivity": 1.0, "lower": 0.0, "upper": 1.0},
            "LaplaceFolded": {"sensitivity": 1.0, "lower": 0.0, "upper": 1.0},
            "LaplaceBoundedDomain": {"sensitivity": 1.0, "lower": 0.0, "upper": 1.0},
            "Staircase": {"sensitivity": 1.0},
            "Snapping": {"sensitivity": 1.0, "lower": 0.0, "upper": 1.0},
            "GaussianAnalytic": {"sensitivity": 1.0, "delta": DELTA},
            "Gaussian": {"sensitivity": 1.0, "delta": DELTA},
        }.items()
    ]
    on_integers = [
        entry("mechanism", name, values(0, 1), name=name, **options)
        for name, options in {
            "Geometric": {"sensitivity": 1},
            "GeometricTruncated": {"sensitivity": 1, "lower": 0, "upper": 1},
        }.items()
    ]
    scores = values([0.0, 1.0, 1.0], [1.0, 0.0, 0.0])
    choices = [
        entry("selection", name, scores, name=name, sensitivity=1.0)
        for name in ("Exponential", "PermuteAndFlip")
    ]
    far = [[100.0, 1.0]]
    regression = Entry(
        "diffprivlib LinearRegression",
        "diffprivlib",
        "linear_regression",
        {"epsilon": EPSILON, "bounds_X": [0, 100], "bounds_y": [0, 1], "fit_intercept": False},
        PURE,
        [(LINE, LINE + far)],
        report="diffprivlib issues 104 and 105",
    )
    scaler = entry("scaler", "StandardScaler", replaced(*UNIT), bounds=bounds)
    logistic = entry(
        "logistic_regression",
        "LogisticRegression",
        [(CLASSES, MOVED)],
        data_norm=1.0,
        fit_intercept=False,
    )
    binary = entry("binary", "Binary", values("no", "yes"))
    return [
        *statistics,
        *on_numbers,
        *on_integers,
        *choices,
        binary,
        scaler,
        logistic,
        regression,
    ]


def _opendp() -> list[Entry]:
    def entry(
        name: str, function: str, pairs: Pairs, claim: Claim = PURE, **arguments: object
    ) -> Entry:
        delta = 0.0 if claim is PURE else DELTA
        return Entry(
            f"OpenDP {name}",
            "opendp",
            function,
            arguments,
            claim,
            pairs,
            delta=delta,
        )

    answer = math.exp(EPSILON) / (math.exp(EPSILON) + 1)
    category = math.exp(EPSILON) / (math.exp(EPSILON) + CATEGORIES - 1)
    scores = values([0.0, 1.0, 1.0], [1.0, 0.0, 0.0])
    old_max = Entry(
        "OpenDP noisy max for ρ",
        "opendp-0.15.1",
        "noisy_max",
        {"scale": 0.5, "divergence": "zero_concentrated_divergence"},
        Claim(rho=0.5),
        values([0.0] * 8, [1.0, *[-1.0] * 7]),
        trials=100_000,
        delta=1e-6,
        report="opendp issue 2911",
    )
    return [
        entry("Laplace", "number", values(0.0, 1.0), noise="laplace", scale=1.0),
        entry("Gaussian", "number", values(0.0, 1.0), Claim(rho=0.5), noise="gaussian", scale=1.0),
        entry("discrete Laplace", "integer", values(0, 1), noise="laplace", scale=1.0),
        entry("geometric", "integer", values(0, 1), noise="geometric", scale=1.0),
        entry("count", "count", added(*UNIT), scale=1.0),
        entry("sum", "total", added(*UNIT), scale=1.0, low=0.0, high=1.0),
        entry("noisy max", "noisy_max", scores, scale=2.0),
        entry("randomised response", "randomized_bool", values(0, 1), prob=answer),
        entry(
            "randomised category",
            "randomized_category",
            values(0, 1),
            prob=category,
            categories=CATEGORIES,
        ),
        old_max,
    ]


def _python_dp() -> list[Entry]:
    def entry(label: str, function: str, **arguments: object) -> Entry:
        options = {"epsilon": EPSILON, **arguments}
        return Entry(f"PyDP {label}", "python-dp", function, options, PURE, added(*UNIT))

    bounds = {"lower_bound": 0.0, "upper_bound": 1.0}
    statistics = [
        entry(name, "bounded", name=name, **bounds)
        for name in ("BoundedSum", "BoundedMean", "BoundedVariance", "Max", "Median")
    ]
    return [entry("Count", "count"), *statistics]


def _pipeline_dp() -> list[Entry]:
    def people(answers: list[float]) -> list[list[float]]:
        return [[person, answer] for person, answer in enumerate(answers)]

    pairs = [(people(before), people(after)) for before, after in added(*UNIT)]
    entries = []
    for metric in ("COUNT", "SUM", "MEAN", "PRIVACY_ID_COUNT", "VARIANCE"):
        arguments = {"metric": metric, "epsilon": EPSILON}
        label = f"PipelineDP {metric}"
        entries.append(Entry(label, "pipeline-dp", "aggregate", arguments, PURE, pairs))
    return entries


def _pure_ldp() -> list[Entry]:
    neighbours = values(1, 2)
    options = {"epsilon": EPSILON, "d": CATEGORIES}

    def entry(
        name: str, function: str = "report", package: str = "pure-ldp", **arguments: object
    ) -> Entry:
        return Entry(
            f"pure-ldp {name}", package, function, {**options, **arguments}, PURE, neighbours
        )

    return [
        entry("DE", client="DE"),
        entry("HE", client="HE"),
        entry("SUE", client="UE"),
        entry("OUE", client="UE", use_oue=True),
        entry("BLH", "hashed"),
        entry("OLH", "hashed", use_olh=True),
        Entry(
            "pure-ldp 1.1.2 OUE",
            "pure-ldp-1.1.2",
            "report",
            {**options, "client": "UE", "use_oue": True},
            PURE,
            neighbours,
            trials=40_000,
            report="pure-LDP issue 11",
        ),
    ]


def _multi_freq_ldpy() -> list[Entry]:
    neighbours = values(0, 1)

    def entry(name: str, module: str, client: str, **arguments: object) -> Entry:
        options = {"module": module, "client": client, "k": CATEGORIES, **arguments}
        return Entry(
            f"multi-freq-ldpy {name}", "multi-freq-ldpy", "report", options, PURE, neighbours
        )

    once = "pure_frequency_oracles"
    often = "long_freq_est"
    # The claim of one report; that of all reports of a person is eps_perm.
    longitudinal = {"eps_perm": 2 * EPSILON, "eps_1": EPSILON}
    return [
        entry("GRR", f"{once}.GRR", "GRR_Client", epsilon=EPSILON),
        entry("SUE", f"{once}.UE", "UE_Client", epsilon=EPSILON, optimal=False),
        entry("OUE", f"{once}.UE", "UE_Client", epsilon=EPSILON),
        entry("HE", f"{once}.HE", "HE_Client", epsilon=EPSILON),
        Entry(
            "multi-freq-ldpy SS",
            "multi-freq-ldpy",
            "subset",
            {"k": CATEGORIES, "epsilon": EPSILON},
            PURE,
            neighbours,
        ),
        entry("L-GRR", f"{often}.L_GRR", "L_GRR_Client", **longitudinal),
        entry("L-SUE", f"{often}.L_SUE", "L_SUE_Client", **longitudinal),
        entry("L-OSUE", f"{often}.L_OSUE", "L_OSUE_Client", **longitudinal),
        entry("L-SOUE", f"{often}.L_SOUE", "L_SOUE_Client", **longitudinal),
        entry("L-OUE", f"{often}.L_OUE", "L_OUE_Client", **longitudinal),
    ]


def _flower() -> list[Entry]:
    clip = 1.0
    # The documented formula, which is proven for ε up to 1; two updates differ by 2 at most.
    sigma = 2 * clip * math.sqrt(2 * math.log(1.25 / DELTA)) / EPSILON
    arguments = {"clip": clip, "sigma": sigma}
    pairs = values([5.0, 0.0], [-5.0, 0.0])
    name = "Flower LocalDpMod"
    return [Entry(name, "flwr", "local_update", arguments, APPROXIMATE, pairs, delta=DELTA)]


ENTRIES = [
    *_diffprivlib(),
    *_opendp(),
    *_python_dp(),
    *_pipeline_dp(),
    *_pure_ldp(),
    *_multi_freq_ldpy(),
    *_flower(),
]
