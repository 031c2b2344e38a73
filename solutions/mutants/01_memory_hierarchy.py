"""Wrong solutions of exercise 01, and the checks that each must fail.

The matrix was written by hand before any of them ran; tests/solutions holds the code to it. Every check has one that fails it
alone: 01.traffic.standard `one-matrix`, 01.traffic.flash `matrix-moved`, 01.flop `one-product`, 01.roofline
`intensity-upside-down`, 01.chain `one-bound-for-all`, 01.naive `scale-forgotten`, 01.peak `s-gone-before-p`, 01.scale.speed
`scale-one-by-one`, 01.softmax.passes `last-sum-counts`, 01.softmax.speed `fused-one-by-one`. What fails 01.scale or
01.softmax.fused can't fail it alone, since their checks of speed need it: `scale-store-unmasked` and
`fused-padding-counted` fail them and those.
"""

from autograder.exercise import Mutant

# check -> the cells whose code it runs.
RUNS = {
    "01.traffic.standard": {"solution-standard-traffic"},
    "01.traffic.flash": {"solution-flash-traffic"},
    "01.flop": {"solution-flop"},
    "01.roofline": {"solution-roofline"},
    "01.chain": {"solution-roofline", "solution-chain"},
    "01.naive": {"solution-naive"},
    "01.peak": {"solution-peak"},
    "01.scale": {"solution-scale"},
    "01.scale.speed": {"solution-scale"},
    "01.softmax.passes": {"solution-passes"},
    "01.softmax.fused": {"solution-fused"},
    "01.softmax.speed": {"solution-fused"},
}

STANDARD = frozenset({"01.traffic.standard"})
FLASH = frozenset({"01.traffic.flash"})
FLOP = frozenset({"01.flop"})
ROOFLINE = frozenset({"01.roofline"})
CHAIN = frozenset({"01.chain"})
NAIVE = frozenset({"01.naive"})
PEAK = frozenset({"01.peak"})
SCALE, SCALE_SPEED = frozenset({"01.scale"}), frozenset({"01.scale.speed"})
PASSES = frozenset({"01.softmax.passes"})
FUSED, FUSED_SPEED = frozenset({"01.softmax.fused"}), frozenset({"01.softmax.speed"})
NOTHING = frozenset()

NOWHERE = 'float("-inf")'
MASK = f", mask=places < n, other={NOWHERE})"
LOAD = f"x = tl.load(x_ptr + places{MASK}\n        "  # of a pass; what follows says of which
PLACES = "places = start + columns\n        "
PASS_2 = "total += tl.sum(tl.exp(x - m), 0)"
STORE = "tl.store(out_ptr + columns, w / tl.sum(w, 0), mask=inside)"

MUTANTS = [
    Mutant(
        "one-matrix",
        "P is taken to be S, written over: one square matrix goes out and comes back",
        (
            ("solution-standard-traffic", "keys + scores + scores + keys", "keys + scores + keys"),
            ("solution-standard-traffic", "scores + scores + queries", "scores + queries"),
        ),
        STANDARD,
        hint={"01.traffic.standard": "one_matrix"},
    ),
    Mutant(
        "never-read-back",
        "S and P are counted where they are written, and not where they are read",
        (("solution-standard-traffic", "keys + scores + scores + keys", "keys + keys"),),
        STANDARD,
        hint={"01.traffic.standard": "not_read"},
    ),
    Mutant(
        "traffic-of-one-head",
        "the number of heads plays no part",
        (
            ("solution-standard-traffic", "heads * number * read", "number * read"),
            ("solution-standard-traffic", "heads * number * written", "number * written"),
        ),
        STANDARD,
        hint={"01.traffic.standard": "one_head"},
    ),
    Mutant(
        "as-many-keys-as-queries",
        "K and V are taken to be as long as Q",
        (("solution-standard-traffic", "kv_len * d, q_len * kv_len", "q_len * d, q_len * q_len"),),
        STANDARD,
        hint={"01.traffic.standard": "square"},
    ),
    Mutant(
        "matrix-moved",
        "S and P are counted although they never leave the chip",
        (
            ("solution-flash-traffic", "number * read", "number * (read + 2 * q_len * kv_len)"),
            ("solution-flash-traffic", "number * written", "number * (written + 2 * q_len * kv_len)"),
        ),
        FLASH,
        hint={"01.traffic.flash": "matrix_moved"},
    ),
    Mutant(
        "numbers-for-bytes",
        "numbers are counted instead of bytes",
        (
            ("solution-flash-traffic", "heads * number * read", "heads * read"),
            ("solution-flash-traffic", "heads * number * written", "heads * written"),
        ),
        FLASH,
        hint={"01.traffic.flash": "numbers"},
    ),
    Mutant(
        "one-product",
        "the product with V is not counted",
        (("solution-flop", "2 * (2 * heads", "(2 * heads"),),
        FLOP,
        hint={"01.flop": "half"},
    ),
    Mutant(
        "intensity-upside-down",
        "the intensity is bytes for each operation",
        (("solution-roofline", "flop / moved,", "moved / max(flop, 1),"),),
        ROOFLINE,
        hint={"01.roofline": "upside_down"},
    ),
    Mutant(
        "times-added",
        "traffic and arithmetic of a kernel are added, as if the card did one after the other",
        (("solution-roofline", "max(moved / bandwidth, flop / rate)", "moved / bandwidth + flop / rate"),),
        ROOFLINE | CHAIN,
        hint={"01.roofline": "added", "01.chain": "added"},
    ),
    Mutant(
        "a-rate-for-a-time",
        "the height of the roofline is given, operations a second, where the time is asked for",
        (
            (
                "solution-roofline",
                "max(moved / bandwidth, flop / rate)",
                "min(rate, flop / moved * bandwidth)",
            ),
        ),
        ROOFLINE | CHAIN,
        hint={"01.roofline": "attainable"},
    ),
    Mutant(
        "one-bound-for-all",
        "all operations and all bytes are added up, and bounded as one kernel",
        (("solution-chain", "sum(bounds)", "roofline(*map(sum, zip(*kernels)), rate, bandwidth)[1]"),),
        CHAIN,
        hint={"01.chain": "one_max"},
    ),
    Mutant(
        "slowest-kernel",
        "the time of the slowest kernel is taken for that of all",
        (("solution-chain", "sum(bounds)", "max(bounds)"),),
        CHAIN,
        hint={"01.chain": "longest"},
    ),
    Mutant(
        "scale-forgotten",
        "the scores are used without 1/sqrt(d)",
        (("solution-naive", " / np.sqrt(q.shape[1])", ""),),
        NAIVE,
        hint={"01.naive": "scale"},
    ),
    Mutant(
        "no-maximum",
        "the exponentials are those of the scores themselves",
        (("solution-naive", "np.exp(s - s.max(axis=1, keepdims=True))", "np.exp(s)"),),
        NAIVE,
        hint={"01.naive": "no_max"},
    ),
    Mutant(
        "one-maximum-for-all-rows",
        "all rows share one maximum, so that rows far below it vanish",
        (("solution-naive", "s.max(axis=1, keepdims=True)", "s.max()"),),
        NAIVE,
        hint={"01.naive": "shared_max"},
    ),
    Mutant(
        "softmax-down-the-columns",
        "the softmax is over the queries",
        (
            ("solution-naive", "s.max(axis=1, keepdims=True)", "s.max(axis=0)"),
            ("solution-naive", "w.sum(axis=1, keepdims=True)", "w.sum(axis=0)"),
        ),
        NAIVE,
        hint={"01.naive": "columns"},
    ),
    Mutant(
        "maxima-along-the-columns",
        "maximum and sum of each row are taken without keepdims, so that NumPy lays them along the columns",
        (
            ("solution-naive", "s.max(axis=1, keepdims=True)", "s.max(axis=1)"),
            ("solution-naive", "w.sum(axis=1, keepdims=True)", "w.sum(axis=1)"),
        ),
        NAIVE,
        hint={"01.naive": "keepdims"},
    ),
    Mutant(
        "s-gone-before-p",
        "P takes the place of S, so that one matrix exists at a time",
        (("solution-peak", "at_once * 2 * q_len", "at_once * q_len"),),
        PEAK,
        hint={"01.peak": "peak_one_matrix"},
    ),
    Mutant(
        "all-heads-at-once",
        "the matrices of all heads are counted, however many are worked on",
        (("solution-peak", "at_once * 2", "heads * 2"),),
        PEAK,
        hint={"01.peak": "peak_all"},
    ),
    Mutant(
        "scale-store-unmasked",
        "the places behind the end are stored too",
        (("solution-scale", "a * x, mask=inside)", "a * x)"),),
        SCALE,
        SCALE | SCALE_SPEED,
    ),
    Mutant(
        "scale-first-tile",
        "every program works on the first tile",
        (("solution-scale", "tl.program_id(0).to(tl.int64) * BLOCK + ", ""),),
        SCALE,
        SCALE | SCALE_SPEED,
        hint={"01.scale": "first_tile"},
    ),
    Mutant(
        "scale-tiles-overlap",
        "each tile begins one number behind the one before it",
        (("solution-scale", "tl.program_id(0).to(tl.int64) * BLOCK", "tl.program_id(0).to(tl.int64)"),),
        SCALE,
        SCALE | SCALE_SPEED,
        hint={"01.scale": "overlap"},
    ),
    Mutant(
        "copied-not-scaled",
        "the factor is left out",
        (("solution-scale", "a * x, mask", "x, mask"),),
        SCALE,
        SCALE | SCALE_SPEED,
        hint={"01.scale": "not_scaled"},
    ),
    Mutant(
        "scale-one-by-one",
        "right, but one number at a time",
        (
            (
                "solution-scale",
                "    x = tl.load(x_ptr + places, mask=inside, other=0.0)\n"
                "    tl.store(out_ptr + places, a * x, mask=inside)",
                "    first = tl.program_id(0).to(tl.int64) * BLOCK\n"
                "    for i in range(0, BLOCK):\n"
                "        x = tl.load(x_ptr + first + i, mask=first + i < n, other=0.0)\n"
                "        tl.store(out_ptr + first + i, a * x, mask=first + i < n)",
            ),
        ),
        NOTHING,
        SCALE_SPEED,
    ),
    Mutant(
        "last-sum-counts",
        "the sum of the last tile replaces those before it",
        (("solution-passes", PASS_2, PASS_2.replace("+=", "=")),),
        PASSES,
        hint={"01.softmax.passes": "last_tile"},
    ),
    Mutant(
        "passes-padding-counted",
        "places behind the end of the row count as zeros",
        (
            ("solution-passes", LOAD + "m = tl", LOAD.replace(NOWHERE, "0.0") + "m = tl"),
            ("solution-passes", LOAD + "total", LOAD.replace(NOWHERE, "0.0") + "total"),
        ),
        PASSES,
        hint={"01.softmax.passes": "padded"},
    ),
    Mutant(
        "last-maximum-counts",
        "the maximum of the last tile replaces those before it",
        (("solution-passes", "m = tl.maximum(m, tl.max(x, 0))", "m = tl.max(x, 0)"),),
        PASSES,
        hint={"01.softmax.passes": "last_maximum"},
    ),
    Mutant(
        "maximum-begins-with-zero",
        "the search for the maximum begins with 0, which is larger than all numbers of a negative row",
        (("solution-passes", 'm = float("-inf")', "m = 0.0"),),
        PASSES,
        hint={"01.softmax.passes": "vanished"},
    ),
    Mutant(
        "softmax-of-each-tile",
        "maximum and sum are those of the tile, so that each tile adds up to 1",
        (
            (
                "solution-passes",
                "tl.store(out_ptr + places, tl.exp(x - m) / total",
                "w = tl.exp(x - tl.max(x, 0))\n        tl.store(out_ptr + places, w / tl.sum(w, 0)",
            ),
        ),
        PASSES,
        hint={"01.softmax.passes": "own_sum"},
    ),
    Mutant(
        "same-tile-in-each-turn",
        "the places of a tile leave out where it starts",
        tuple(
            ("solution-passes", f"{PLACES}{what}", f"{PLACES.replace('start + ', '')}{what}")
            for what in (LOAD + "m = tl", LOAD + "total", LOAD + "tl.store")
        ),
        PASSES,
        hint={"01.softmax.passes": "same_tile"},
    ),
    Mutant(
        "fused-padding-counted",
        "places behind the end of the row count as zeros",
        (("solution-fused", 'other=float("-inf")', "other=0.0"),),
        FUSED,
        FUSED | FUSED_SPEED,
        hint={"01.softmax.fused": "padded"},
    ),
    Mutant(
        "fused-next-row-counted",
        "the load has no mask, so that a short tile reads on into the next row",
        (("solution-fused", ', mask=inside, other=float("-inf"))', ")"),),
        FUSED,
        FUSED | FUSED_SPEED,
        hint={"01.softmax.fused": "overrun"},
    ),
    Mutant(
        "fused-no-maximum",
        "the exponentials are those of the numbers themselves",
        (("solution-fused", "x - tl.max(x, 0)", "x"),),
        FUSED,
        FUSED | FUSED_SPEED,
        hint={"01.softmax.fused": "no_max"},
    ),
    Mutant(
        "fused-not-divided",
        "the exponentials are stored without the division by their sum",
        (("solution-fused", "w / tl.sum(w, 0)", "w"),),
        FUSED,
        FUSED | FUSED_SPEED,
        hint={"01.softmax.fused": "unnormalised"},
    ),
    Mutant(
        "fused-one-by-one",
        "right, but it stores one number at a time",
        (
            (
                "solution-fused",
                STORE,
                "m, total = tl.max(x, 0), tl.sum(w, 0)\n"
                "    for i in range(0, n):\n"
                "        tl.store(out_ptr + i, tl.exp(tl.load(x_ptr + i) - m) / total)",
            ),
        ),
        NOTHING,
        FUSED_SPEED,
    ),
]
