"""Wrong solutions of exercise 02, and the checks that each must fail.

The matrix was written by hand before any of them ran; tests/solutions holds the code to it. Every check has one that fails it
alone: 02.softmax `softmax-as-written`, 02.update `update-writes-to-s`, 02.update.masked `update-no-guard`, 02.one_pass
`pass-starts-from-zero`, 02.merge `merge-writes-to-a`, 02.merge.empty `merge-scratch-counted`, 02.merge.laws
`merge-all-ignores-the-tree`, 02.early `early-settled`, 02.kernel.full `kernel-large-scores`, 02.kernel.tails
`kernel-padding-counted`, 02.kernel.strides `kernel-rows-packed`, 02.kernel.empty `kernel-no-guard`.
"""

from autograder.exercise import Mutant

# Which solution cells' code a check runs.
RUNS = {
    "02.softmax": {"solution-softmax"},
    "02.update": {"solution-update"},
    "02.update.masked": {"solution-update"},
    "02.one_pass": {"solution-update", "solution-one-pass"},
    "02.merge": {"solution-merge"},
    "02.merge.empty": {"solution-merge"},
    "02.merge.laws": {"solution-merge", "solution-merge-all"},
    "02.early": {"solution-early"},
    "02.kernel.full": {"solution-kernel"},
    "02.kernel.tails": {"solution-kernel"},
    "02.kernel.strides": {"solution-kernel"},
    "02.kernel.empty": {"solution-kernel"},
}

SOFTMAX = frozenset({"02.softmax"})
UPDATE = frozenset({"02.update", "02.update.masked", "02.one_pass"})  # one_pass calls update
PASS = frozenset({"02.one_pass"})
MERGE = frozenset({"02.merge", "02.merge.empty", "02.merge.laws"})  # merge_all calls merge
EARLY = frozenset({"02.early"})
KERNEL = frozenset({"02.kernel.full", "02.kernel.tails", "02.kernel.strides", "02.kernel.empty"})

SHARE = "share = left / (left + l * np.exp(m - highest))"
ROOM = "room = np.maximum(np.abs(high - now), np.abs(now - low))"
# The same two lines load in both walks, so each is named with the line after it.
LOAD = 's = tl.load(x_ptr + j * x_stride, mask=j < n, other=float("-inf"))\n        s = s.to(tl.float32)'
FIRST, SECOND = "\n        m_new = ", "\n        p = "
HIDE = '\n        s = tl.where(s == float("-inf"), -1.0e9, s)'


def _in_both_loads(old, new):
    changed = LOAD.replace(old, new)
    return tuple(("solution-kernel", LOAD + after, changed + after) for after in (FIRST, SECOND))


MUTANTS = [
    Mutant(
        "softmax-as-written",
        "the exponentials are those of the scores themselves",
        (("solution-softmax", "np.exp(s - s.max(axis=1, keepdims=True))", "np.exp(s)"),),
        SOFTMAX,
        hint={"02.softmax": "no_max"},
    ),
    Mutant(
        "softmax-one-maximum",
        "all rows share one maximum, so that rows far below it vanish",
        (("solution-softmax", "s.max(axis=1, keepdims=True)", "s.max()"),),
        SOFTMAX,
        hint={"02.softmax": "one_max"},
    ),
    Mutant(
        "softmax-down-the-columns",
        "the exponentials are divided by the sum of their column",
        (("solution-softmax", "e.sum(axis=1, keepdims=True)", "e.sum(axis=0)"),),
        SOFTMAX,
        hint={"02.softmax": "columns"},
    ),
    Mutant(
        "softmax-not-divided",
        "the exponentials are not divided by their sum",
        (("solution-softmax", "return e / e.sum(axis=1, keepdims=True)", "return e"),),
        SOFTMAX,
        hint={"02.softmax": "unnormalised"},
    ),
    Mutant(
        "update-m-before-correction",
        "m is replaced before the correction is computed, which is then always 1",
        (("solution-update", "m_new = max(m, s.max())", "m_new = m = max(m, s.max())"),),
        UPDATE,
        hint={"02.update": "correction", "02.one_pass": "correction"},
    ),
    Mutant(
        "update-upside-down",
        "the correction is the exponential of the new maximum minus the old one",
        (("solution-update", "np.exp(m - shift)", "np.exp(shift - m)"),),
        UPDATE,
        hint={"02.update": "upside_down"},
    ),
    Mutant(
        "update-measured-from-the-old-maximum",
        "the new exponentials are measured from the maximum before the tile",
        (
            ("solution-update", "np.exp(m - shift) * l", "l"),
            ("solution-update", "np.exp(s - shift).sum()", "np.exp(s - m).sum()"),
        ),
        UPDATE,
        hint={"02.update": "old_max"},
    ),
    Mutant(
        "update-forgets",
        "l holds the new scores alone",
        (("solution-update", "np.exp(m - shift) * l + ", ""),),
        UPDATE,
        hint={"02.update": "forgotten", "02.one_pass": "m_stays"},
    ),
    Mutant(
        "update-maximum-of-the-tile",
        "m is the maximum of the last tile and not of all so far",
        (("solution-update", "m_new = max(m, s.max())", "m_new = s.max()"),),
        UPDATE,
        hint={"02.update": "tile_max"},
    ),
    Mutant(
        "update-writes-to-s",
        "the exponentials are computed in the memory of the scores",
        (
            (
                "solution-update",
                "return m_new, np.exp(m - shift) * l + np.exp(s - shift).sum()",
                "s -= shift\n    return m_new, np.exp(m - shift) * l + np.exp(s, out=s).sum()",
            ),
        ),
        frozenset({"02.update"}),
    ),
    Mutant(
        "update-no-guard",
        "a wholly masked first tile subtracts -inf from -inf",
        (("solution-update", "shift = m_new if m_new > -np.inf else 0.0", "shift = m_new"),),
        frozenset({"02.update.masked"}),
        hint={"02.update.masked": "no_guard"},
    ),
    Mutant(
        "update-shift-as-m",
        "a wholly masked first tile gives back what was subtracted, and not the maximum",
        (("solution-update", "return m_new,", "return shift,"),),
        frozenset({"02.update.masked"}),
        hint={"02.update.masked": "finite_m"},
    ),
    Mutant(
        "pass-starts-from-zero",
        "the maximum starts from 0, and the row's may be negative",
        (("solution-one-pass", "(-np.inf, 0.0)", "(0.0, 0.0)"),),
        PASS,
        hint={"02.one_pass": "zero_start"},
    ),
    Mutant(
        "pass-drops-the-tail",
        "the loop stops after the last whole tile",
        (("solution-one-pass", "range(0, len(s), tile)", "range(0, len(s) - tile + 1, tile)"),),
        PASS,
        hint={"02.one_pass": "dropped"},
    ),
    Mutant(
        "pass-keeps-nothing",
        "every tile starts from the empty state again",
        (("solution-one-pass", "update(state, ", "update((-np.inf, 0.0), "),),
        PASS,
        hint={"02.one_pass": "m_stays"},
    ),
    Mutant(
        "merge-corrects-one-side",
        "b is added as it is, as if it were measured from the common maximum",
        (("solution-merge", "np.exp(m_b - shift)", "np.ones_like(m_b)"),),
        MERGE,
        hint={"02.merge": "one_side"},
    ),
    Mutant(
        "merge-o-not-corrected",
        "both sides of l are corrected, and o is not",
        (
            ("solution-merge", "corrected(w_a[:, None], o_a)", "o_a"),
            ("solution-merge", "corrected(w_b[:, None], o_b)", "o_b"),
        ),
        MERGE,
        hint={"02.merge": "correction_o", "02.merge.laws": "correction_o"},
    ),
    Mutant(
        "merge-l-not-corrected",
        "both sides of o are corrected, and l is not",
        (("solution-merge", "corrected(w_a, l_a) + corrected(w_b, l_b)", "l_a + l_b"),),
        MERGE,
        hint={"02.merge": "correction_l", "02.merge.laws": "correction_l"},
    ),
    Mutant(
        "merge-upside-down",
        "the weights are the exponentials of the common maximum minus a side's own",
        (
            ("solution-merge", "np.exp(m_a - shift)", "np.exp(shift - m_a)"),
            ("solution-merge", "np.exp(m_b - shift)", "np.exp(shift - m_b)"),
        ),
        MERGE,
        hint={"02.merge": "upside_down"},
    ),
    Mutant(
        "merge-normalises",
        "o is divided by l",
        (("solution-merge", "return m, l, o", "return m, l, o / l[:, None]"),),
        MERGE,
        hint={"02.merge": "normalised"},
    ),
    Mutant(
        "merge-writes-to-a",
        "the new o is computed in the memory of a's",
        (("solution-merge", "return m, l, o", "o_a[:] = o\n    return m, l, o_a"),),
        frozenset({"02.merge"}),
    ),
    Mutant(
        "merge-no-guard",
        "where both sides are empty, -inf is subtracted from -inf",
        (
            ("solution-merge", "shift = np.where(m > -np.inf, m, 0.0)", "shift = m"),
            ("solution-merge", "np.where(w > 0, w * x, 0.0)", "np.where(w == 0, 0.0, w * x)"),
        ),
        frozenset({"02.merge.empty"}),
        hint={"02.merge.empty": "two_empty"},
    ),
    Mutant(
        "merge-shift-as-m",
        "two empty sides give back what was subtracted, and not the maximum",
        (("solution-merge", "return m, l, o", "return shift, l, o"),),
        frozenset({"02.merge.empty"}),
        hint={"02.merge.empty": "finite_m"},
    ),
    Mutant(
        "merge-scratch-counted",
        "what an empty side holds is multiplied by 0, and 0 times NaN is NaN",
        (("solution-merge", "np.where(w > 0, w * x, 0.0)", "w * x"),),
        frozenset({"02.merge.empty"}),
        hint={"02.merge.empty": "scratch"},
    ),
    Mutant(
        "merge-all-ignores-the-tree",
        "all states are merged one after another, named or not",
        (
            (
                "solution-merge-all",
                "left, right = tree\n    return merge(merge_all(states, left), merge_all(states, right))",
                "state = states[0]\n    for other in states[1:]:\n        state = merge(state, other)\n    return state",
            ),
        ),
        frozenset({"02.merge.laws"}),
        hint={"02.merge.laws": "all_states"},
    ),
    Mutant(
        "merge-all-one-level",
        "of each half of the tree the first state alone is taken",
        (
            (
                "solution-merge-all",
                "    return merge(merge_all(states, left), merge_all(states, right))",
                "    while not isinstance(right, int):\n        right = right[0]\n"
                "    return merge(merge_all(states, left), states[right])",
            ),
        ),
        frozenset({"02.merge.laws"}),
    ),
    Mutant(
        "early-undivided",
        "o is taken for the output",
        (("solution-early", "now = o / l[:, None]", "now = o"),),
        EARLY,
        hint={"02.early": "undivided"},
    ),
    Mutant(
        "early-settled",
        "the output is said not to move any more",
        (("solution-early", ROOM, "room = 0.0 * now"),),
        EARLY,
        hint={"02.early": "settled"},
    ),
    Mutant(
        "early-one-key",
        "the unread keys count as one",
        (("solution-early", SHARE, "share = 1 / (1 + l * np.exp(m - highest))"),),
        EARLY,
        hint={"02.early": "one_key"},
    ),
    Mutant(
        "early-ratio",
        "the weight of the unread keys is divided by that of the read ones",
        (("solution-early", SHARE, "share = left / (l * np.exp(m - highest))"),),
        EARLY,
        hint={"02.early": "ratio"},
    ),
    Mutant(
        "early-l-without-m",
        "l is taken for the weight of what was read",
        (("solution-early", SHARE, "share = left / (left + l * np.exp(-highest))"),),
        EARLY,
        hint={"02.early": "no_m"},
    ),
    Mutant(
        "early-whole-range",
        "the output is said to move by all of high - low",
        (("solution-early", ROOM, "room = np.full_like(now, high - low)"),),
        EARLY,
        hint={"02.early": "range"},
    ),
    Mutant(
        "early-upwards-alone",
        "the output is said to move to high, never to low",
        (("solution-early", ROOM, "room = np.abs(high - now)"),),
        EARLY,
        hint={"02.early": "upwards"},
    ),
    Mutant(
        "early-unknown-is-nan",
        "both weights are measured from the larger maximum, which may be inf",
        (
            (
                "solution-early",
                SHARE,
                "top = np.maximum(m, highest)\n"
                "        unread = left * np.exp(highest - top)\n"
                "        share = unread / (unread + l * np.exp(m - top))",
            ),
        ),
        EARLY,
        hint={"02.early": "unknown"},
    ),
    Mutant(
        "kernel-large-scores",
        "the maximum is subtracted only where it is negative, so that large scores overflow",
        (
            (
                "solution-kernel",
                "m_new = tl.maximum(m, tl.max(s, 0))",
                "m_new = tl.minimum(tl.maximum(m, tl.max(s, 0)), 0.0)",
            ),
        ),
        frozenset({"02.kernel.full"}),
        hint={"02.kernel.full": "no_max"},
    ),
    Mutant(
        "kernel-stores-in-the-first-walk",
        "each tile is divided by the sum over the tiles so far",
        (
            (
                "solution-kernel",
                "        m = m_new\n",
                "        m = m_new\n        tl.store(out_ptr + j * out_stride, tl.exp(s - shift) / l, mask=j < n)\n",
            ),
            ("solution-kernel", "        tl.store(out_ptr + j * out_stride, p, mask=j < n)", ""),
        ),
        KERNEL,
        hint={"02.kernel.full": "first_walk"},
    ),
    Mutant(
        "kernel-padding-counted",
        "places behind the end of the row count as scores of 0",
        (("solution-kernel", LOAD + FIRST, LOAD.replace('float("-inf")', "0.0") + FIRST),),
        frozenset({"02.kernel.tails"}),
        hint={"02.kernel.tails": "padded"},
    ),
    Mutant(
        "kernel-padding-far-down",
        "places behind the end of the row count as scores of -10000",
        (("solution-kernel", LOAD + FIRST, LOAD.replace('float("-inf")', "-1.0e4") + FIRST),),
        frozenset({"02.kernel.tails"}),
        hint={"02.kernel.tails": "finite_m"},
    ),
    Mutant(
        "kernel-load-unmasked",
        "the last tile is loaded without a mask, and what lies behind the row counts",
        (
            (
                "solution-kernel",
                LOAD + FIRST,
                LOAD.replace(', mask=j < n, other=float("-inf")', "") + FIRST,
            ),
        ),
        frozenset({"02.kernel.tails"}),
        hint={"02.kernel.tails": "overrun"},
    ),
    Mutant(
        "kernel-store-unmasked",
        "the places behind the end of the row are stored too",
        (("solution-kernel", "p, mask=j < n)", "p)"),),
        frozenset({"02.kernel.tails"}),
    ),
    Mutant(
        "kernel-rows-packed",
        "each row is read from where the one before it ends",
        (("solution-kernel", "row * x_row_stride", "row * n"),),
        frozenset({"02.kernel.strides"}),
        hint={"02.kernel.strides": "packed"},
    ),
    Mutant(
        "kernel-column-stride-forgotten",
        "neighbours in memory are read in place of neighbours in the row",
        _in_both_loads("j * x_stride", "j"),
        frozenset({"02.kernel.strides"}),
        hint={"02.kernel.strides": "column_stride"},
    ),
    Mutant(
        "kernel-output-by-the-strides-of-x",
        "the weights are stored by the strides of x, whatever the output's are",
        (
            ("solution-kernel", "row * out_row_stride", "row * x_row_stride"),
            ("solution-kernel", "j * out_stride", "j * x_stride"),
        ),
        frozenset({"02.kernel.strides"}),
        hint={"02.kernel.strides": "out_packed"},
    ),
    Mutant(
        "kernel-no-guard",
        "a first tile of -inf subtracts -inf from -inf",
        (("solution-kernel", 'shift = tl.where(m_new == float("-inf"), 0.0, m_new)', "shift = m_new"),),
        frozenset({"02.kernel.empty"}),
        hint={"02.kernel.empty": "no_guard"},
    ),
    Mutant(
        "kernel-shift-as-m",
        "what is subtracted in a first tile of -inf is kept as m, and scores far below it vanish",
        (("solution-kernel", "        m = m_new\n", "        m = shift\n"),),
        frozenset({"02.kernel.empty"}),
        hint={"02.kernel.empty": "finite_m"},
    ),
    Mutant(
        "kernel-dead-rows",
        "a row of nothing but -inf ends with 0 / 0",
        (("solution-kernel", "total = tl.where(l == 0.0, 1.0, l)", "total = l"),),
        frozenset({"02.kernel.empty"}),
        hint={"02.kernel.empty": "dead_rows"},
    ),
    Mutant(
        "kernel-large-negative-mask",
        "-inf is replaced by a large negative number, so that an empty row gets equal weights",
        _in_both_loads(LOAD, LOAD + HIDE),
        frozenset({"02.kernel.empty"}),
        hint={"02.kernel.empty": "uniform"},
    ),
]
