"""Wrong solutions of exercise 04, and the checks that each must fail.

The matrix was written by hand before any of them ran; tests/solutions holds the code to it. Every check has one that fails it
alone: 04.visible `tile-starts-at-zero`, 04.visible.window `window-one-sided`, 04.tiles `full-tiles-unknown`, 04.range
`end-without-its-key`, 04.nan.made `hide-everything`, 04.nan.guard `guard-forgotten`, 04.nan.padding `values-not-cleaned`,
04.stand_in `one-hidden-key`, 04.bug.edge `edge-as-given`, 04.bug.cache `cache-keys-only`, 04.bug.band `band-as-given`, 04.kernel.nan
`kernel-v-by-room`, 04.kernel.skips `kernel-diagonal-unused`. What fails 04.kernel.ragged can't fail it alone, since 04.kernel.skips
needs it: `kernel-diagonal-of-the-tensor` fails these two.
"""

from autograder.exercise import Mutant

# Which cells' code a check runs.
RUNS = {
    "04.visible": {"solution-visible"},
    "04.visible.window": {"solution-visible"},
    "04.tiles": {"solution-visible", "solution-tiles"},
    "04.range": {"solution-range"},
    "04.nan.made": {"solution-made"},
    "04.nan.guard": {"solution-step"},
    "04.nan.padding": {"solution-step"},
    "04.stand_in": {"solution-stand-in"},
    "04.bug.edge": {"solution-edge"},
    "04.bug.cache": {"solution-cache"},
    "04.bug.band": {"solution-band"},
    "04.kernel.ragged": {"solution-kernel"},
    "04.kernel.nan": {"solution-kernel"},
    "04.kernel.skips": {"solution-kernel"},
}

MASK = frozenset({"04.visible", "04.visible.window", "04.tiles"})
RAGGED = frozenset({"04.kernel.ragged", "04.kernel.skips"})  # the second needs the first
KERNEL = RAGGED | {"04.kernel.nan"}

DIAGONAL = """    if CAUSAL:
        end = tl.minimum(end, first + BLOCK_M + kv_used - q_used)
"""
BEHIND = "    end = tl.where(first < q_used, end, 0)\n"

MUTANTS = [
    Mutant(
        "diagonal-top-left",
        "a query's place among the keys is its own number",
        (("solution-visible", "i_k - (i_q + kv_len - q_len)", "i_k - i_q"),),
        MASK,
        hint={"04.visible": "top_left", "04.visible.window": "top_left", "04.tiles": "top_left"},
    ),
    Mutant(
        "own-key-hidden",
        "a query does not see its own key",
        (("solution-visible", "ahead <= 0", "ahead < 0"),),
        MASK,
        hint={"04.visible": "causal_strict", "04.tiles": "causal_strict"},
    ),
    Mutant(
        "padding-seen",
        "slots behind the last key are seen",
        (("solution-visible", " & (i_k < kv_len)", " & (i_k == i_k)"),),
        frozenset({"04.visible", "04.tiles"}),
        hint={"04.visible": "keys_padding", "04.tiles": "tail_full"},
    ),
    Mutant(
        "tile-starts-at-zero",
        "the mask is made from the shapes of the indices, and not from the indices",
        (
            (
                "solution-visible",
                "    ahead =",
                "    i_q, i_k = np.arange(len(i_q))[:, None], np.arange(len(i_k))\n    ahead =",
            ),
        ),
        frozenset({"04.visible"}),
        hint={"04.visible": "from_zero"},
    ),
    Mutant(
        "lengths-ignored",
        "neither index is compared with its length",
        (("solution-visible", "(i_q < q_len) & (i_k < kv_len)", "(i_q == i_q) & (i_k == i_k)"),),
        frozenset({"04.visible", "04.tiles"}),
        hint={"04.visible": "no_lengths"},
    ),
    Mutant(
        "window-too-wide",
        "a key that is exactly `window` away is seen",
        (("solution-visible", "np.abs(ahead) < window", "np.abs(ahead) <= window"),),
        frozenset({"04.visible.window", "04.tiles"}),
        hint={"04.visible.window": "window_wide"},
    ),
    Mutant(
        "window-one-sided",
        "the window hides only the keys that lie far behind",
        (("solution-visible", "np.abs(ahead) < window", "ahead > -window"),),
        frozenset({"04.visible.window"}),
        hint={"04.visible.window": "window_behind"},
    ),
    Mutant(
        "full-tiles-unknown",
        "a tile that everybody sees whole counts as partial",
        (("solution-tiles", ".astype(int) + seen.all((1, 3))", ".astype(int)"),),
        frozenset({"04.tiles"}),
        hint={"04.tiles": "no_full"},
    ),
    Mutant(
        "tiles-torn",
        "the reshape cuts runs of elements and no tiles",
        (
            (
                "solution-tiles",
                "seen.reshape(many_q, tile_q, many_k, tile_k)",
                "seen.reshape(many_q, many_k, tile_q, tile_k).swapaxes(1, 2)",
            ),
        ),
        frozenset({"04.tiles"}),
        hint={"04.tiles": "reshaped"},
    ),
    Mutant(
        "end-without-its-key",
        "the walk ends at the last query's own key, and leaves that out",
        (("solution-range", "last + place + 1)", "last + place)"),),
        frozenset({"04.range"}),
        hint={"04.range": "stops_early"},
    ),
    Mutant(
        "end-rounded-down",
        "a tile that is begun is not visited",
        (("solution-range", "-(-end // tile_k)", "end // tile_k"),),
        frozenset({"04.range"}),
        hint={"04.range": "stops_early"},
    ),
    Mutant(
        "begin-of-the-last-query",
        "the walk begins where the window of the last query does",
        (("solution-range", "max(begin, first + place", "max(begin, last + place"),),
        frozenset({"04.range"}),
        hint={"04.range": "begins_late"},
    ),
    Mutant(
        "begin-below-zero",
        "the window of the first queries begins before key 0, and the walk as well",
        (("solution-range", "max(begin, first + place - window + 1)", "first + place - window + 1"),),
        frozenset({"04.range"}),
        hint={"04.range": "below_zero"},
    ),
    Mutant(
        "nothing-to-see-forgotten",
        "where nobody sees anything, the walk ends before key 0",
        (("solution-range", "    if end <= begin:\n        return 0, 0\n", ""),),
        frozenset({"04.range"}),
        hint={"04.range": "below_zero"},
    ),
    Mutant(
        "window-without-an-end",
        "the window cuts off what lies behind, and nothing ahead",
        (("solution-range", "        end = min(end, last + place + window)\n", ""),),
        frozenset({"04.range"}),
        hint={"04.range": "window_behind"},
    ),
    Mutant(
        "hide-everything",
        "all scores are hidden",
        (("solution-made", "hidden[:tile]", "hidden[:]"),),
        frozenset({"04.nan.made"}),
        hint={"04.nan.made": "hid_all"},
    ),
    Mutant(
        "hide-the-last-tile",
        "the last tile is hidden, when m is finite already",
        (("solution-made", "hidden[:tile]", "hidden[(len(s) - 1) // tile * tile :]"),),
        frozenset({"04.nan.made"}),
        hint={"04.nan.made": "hid_last"},
    ),
    Mutant(
        "guard-forgotten",
        "a maximum of -inf is subtracted",
        (("solution-step", "np.where(m_new == -np.inf, 0.0, m_new)", "m_new"),),
        frozenset({"04.nan.guard"}),
        hint={"04.nan.guard": "no_guard"},
    ),
    Mutant(
        "correction-unguarded",
        "the guard is in the weights and not in the correction",
        (("solution-step", "np.exp(m - shift)", "np.exp(m - m_new)"),),
        frozenset({"04.nan.guard"}),
        hint={"04.nan.guard": "no_guard"},
    ),
    Mutant(
        "shift-in-the-state",
        "the shift is returned in place of the maximum",
        (("solution-step", "return m_new,", "return shift,"),),
        frozenset({"04.nan.guard"}),
        hint={"04.nan.guard": "shift_kept"},
    ),
    Mutant(
        "finite-mask",
        "a hidden score is -1e6",
        (("solution-step", "np.where(seen, s, -np.inf)", "np.where(seen, s, -1e6)"),),
        frozenset({"04.nan.guard"}),
        hint={"04.nan.guard": "stand_in"},
    ),
    Mutant(
        "mask-added",
        "-inf is added to the hidden scores, which may be NaN",
        (("solution-step", "np.where(seen, s, -np.inf)", "s + np.where(seen, 0.0, -np.inf)"),),
        frozenset({"04.nan.padding"}),
        hint={"04.nan.padding": "added_mask"},
    ),
    Mutant(
        "values-not-cleaned",
        "the weight of 0 is trusted to hide a value of NaN",
        (("solution-step", "    v = np.where(seen.any(axis=0)[:, None], v, 0.0)\n", ""),),
        frozenset({"04.nan.padding"}),
        hint={"04.nan.padding": "poisoned"},
    ),
    Mutant(
        "nan-alone-cleaned",
        "NaN in v is replaced, and an infinity that nobody sees is not",
        (("solution-step", "np.where(seen.any(axis=0)[:, None], v, 0.0)", "np.where(np.isnan(v), 0.0, v)"),),
        frozenset({"04.nan.padding"}),
        hint={"04.nan.padding": "poisoned"},
    ),
    Mutant(
        "result-cleaned",
        "NaN in the new output is made 0",
        (
            ("solution-step", "    v = np.where(seen.any(axis=0)[:, None], v, 0.0)\n", ""),
            (
                "solution-step",
                "alpha[:, None] * o + p @ v",
                "np.nan_to_num(alpha[:, None] * o + p @ v, posinf=np.inf)",
            ),
        ),
        frozenset({"04.nan.padding"}),
        hint={"04.nan.padding": "wiped"},
    ),
    Mutant(
        "everything-cleaned",
        "NaN and infinity are replaced in slots that are seen, too",
        (("solution-step", "np.where(seen.any(axis=0)[:, None], v, 0.0)", "np.nan_to_num(v)"),),
        frozenset({"04.nan.padding"}),
        hint={"04.nan.padding": "hushed"},
    ),
    Mutant(
        "one-hidden-key",
        "the shift is right when one key is hidden",
        (("solution-stand-in", "stand_in + np.log(hidden)", "stand_in"),),
        frozenset({"04.stand_in"}),
        hint={"04.stand_in": "one_hidden"},
    ),
    Mutant(
        "stand-in-underflows",
        "the exponential of the stand-in is that of -1e6, which is 0",
        (("solution-stand-in", "stand_in + np.log(hidden)", "np.log(hidden * np.exp(stand_in))"),),
        frozenset({"04.stand_in"}),
        hint={"04.stand_in": "underflow"},
    ),
    Mutant(
        "shift-overflows",
        "the exponentials are those of the scores themselves",
        (("solution-stand-in", "(m + np.log(np.exp(s - m).sum()))", "np.log(np.exp(s).sum())"),),
        frozenset({"04.stand_in"}),
        hint={"04.stand_in": "overflow"},
    ),
    Mutant(
        "edge-as-given",
        "the walk ends one key too early",
        (("solution-edge", "last + kv_len - q_len + 1)", "last + kv_len - q_len)"),),
        frozenset({"04.bug.edge"}),
    ),
    Mutant(
        "edge-without-an-end",
        "every tile is visited",
        (("solution-edge", "tl.minimum(kv_len, last + kv_len - q_len + 1)", "kv_len"),),
        frozenset({"04.bug.edge"}),
        hint={"04.bug.edge": "behind_diagonal"},
    ),
    Mutant(
        "edge-mask-moved",
        "the walk is mended, and the mask was moved while looking for the fault",
        (("solution-edge", "<= rows[:, None]", "< rows[:, None]"),),
        frozenset({"04.bug.edge"}),
        hint={"04.bug.edge": "causal_strict"},
    ),
    Mutant(
        "cache-keys-only",
        "the load of K is mended, and that of V is not",
        (
            (
                "solution-cache",
                "v_ptr + k_tile, mask=inside",
                "v_ptr + k_tile, mask=columns[:, None] < kv_len",
            ),
        ),
        frozenset({"04.bug.cache"}),
    ),
    Mutant(
        "cache-nan-cleaned",
        "every NaN in V is replaced, and the load goes on to the room of the tensor",
        (
            ("solution-cache", "inside = columns[:, None] < used", "inside = columns[:, None] < kv_len"),
            (
                "solution-cache",
                "        s = tl.dot(",
                "        v = tl.where(v == v, v, 0.0)\n        s = tl.dot(",
            ),
        ),
        frozenset({"04.bug.cache"}),
    ),
    Mutant(
        "cache-all-cleaned",
        "NaN and infinity in V are replaced, in slots that are seen as well",
        (
            ("solution-cache", "inside = columns[:, None] < used", "inside = columns[:, None] < kv_len"),
            (
                "solution-cache",
                "        s = tl.dot(",
                "        v = tl.where(v - v == 0.0, v, 0.0)\n        s = tl.dot(",
            ),
        ),
        frozenset({"04.bug.cache"}),
        hint={"04.bug.cache": "hushed"},
    ),
    Mutant(
        "cache-scores-of-zero",
        "the loads are mended, and the scores are no longer masked",
        (("solution-cache", "tl.where(columns[None, :] < used, s, ", "tl.where(s == s, s, "),),
        frozenset({"04.bug.cache"}),
        hint={"04.bug.cache": "padded"},
    ),
    Mutant(
        "band-as-given",
        "the correction has no guard",
        (("solution-band", "alpha = tl.exp(m - shift)", "alpha = tl.exp(m - m_new)"),),
        frozenset({"04.bug.band"}),
    ),
    Mutant(
        "band-finite-mask",
        "a hidden score is -1e6, so that no maximum is -inf",
        (
            ("solution-band", 'float("-inf"))\n        m_new', "-1e6)\n        m_new"),
            ("solution-band", "alpha = tl.exp(m - shift)", "alpha = tl.exp(m - m_new)"),
        ),
        frozenset({"04.bug.band"}),
        hint={"04.bug.band": "uniform"},
    ),
    Mutant(
        "band-without-window",
        "the NaN is gone, and with it the window",
        (("solution-band", " & (ahead > -window)", ""),),
        frozenset({"04.bug.band"}),
        hint={"04.bug.band": "no_window"},
    ),
    Mutant(
        "kernel-top-left",
        "the diagonal starts at the first key",
        (("solution-kernel", "<= rows[:, None] + kv_used - q_used", "<= rows[:, None]"),),
        KERNEL,
        hint={"04.kernel.ragged": "top_left"},
    ),
    Mutant(
        "kernel-diagonal-of-the-tensor",
        "the diagonal is placed by the room and not by the lengths",
        (("solution-kernel", "<= rows[:, None] + kv_used - q_used", "<= rows[:, None] + kv_len - q_len"),),
        RAGGED,
        hint={"04.kernel.ragged": "padded_lens"},
    ),
    Mutant(
        "kernel-padding-counted",
        "places behind the last key count as keys of score 0",
        (
            (
                "solution-kernel",
                "(rows[:, None] < q_used) & (columns[None, :] < kv_used)",
                "(rows[:, None] < q_used)",
            ),
        ),
        KERNEL,
        hint={"04.kernel.ragged": "padded"},
    ),
    Mutant(
        "kernel-padding-computed",
        "rows behind the last query attend like any other",
        (
            ("solution-kernel", "mask=rows[:, None] < q_used", "mask=rows[:, None] < q_len"),
            ("solution-kernel", "(rows[:, None] < q_used) & (columns", "(columns"),
            ("solution-kernel", BEHIND, ""),
        ),
        KERNEL,
        hint={"04.kernel.ragged": "rows_padding", "04.kernel.skips": "visits_padding"},
    ),
    Mutant(
        "kernel-rows-even",
        "rows behind the last query have a q of 0, and see keys",
        (("solution-kernel", "(rows[:, None] < q_used) & (columns", "(columns"),),
        KERNEL,
        hint={"04.kernel.ragged": "rows_even"},
    ),
    Mutant(
        "kernel-division",
        "a row that saw nothing is divided by 0",
        (("solution-kernel", "total = tl.where(empty, 1.0, l)", "total = l"),),
        KERNEL,
        hint={"04.kernel.ragged": "dead_rows", "04.kernel.nan": "dead_rows"},
    ),
    Mutant(
        "kernel-no-guard",
        "a maximum of -inf is subtracted",
        (("solution-kernel", 'tl.where(m_new == float("-inf"), 0.0, m_new)', "m_new"),),
        KERNEL,
        hint={"04.kernel.ragged": "dead_rows", "04.kernel.nan": "dead_rows"},
    ),
    Mutant(
        "kernel-v-by-room",
        "V is loaded as far as the tensor goes",
        (
            (
                "solution-kernel",
                "v_ptr + keys, mask=columns[:, None] < kv_used",
                "v_ptr + keys, mask=columns[:, None] < kv_len",
            ),
        ),
        frozenset({"04.kernel.nan"}),
        hint={"04.kernel.nan": "kernel_poisoned"},
    ),
    Mutant(
        "kernel-diagonal-unused",
        "the loop ends at the length and not at the diagonal",
        (("solution-kernel", DIAGONAL, ""),),
        frozenset({"04.kernel.skips"}),
        hint={"04.kernel.skips": "visits_causal"},
    ),
    Mutant(
        "kernel-one-key-less",
        "the loop ends at the last key that is seen, and leaves that out",
        (("solution-kernel", "first + BLOCK_M + kv_used", "first + BLOCK_M - 1 + kv_used"),),
        RAGGED,
        hint={"04.kernel.skips": "stops_early"},
    ),
    Mutant(
        "kernel-tf32",
        "the product of q and k is rounded to TF32 where the GPU has it",
        (("solution-kernel", 'tl.dot(q, tl.trans(k), input_precision="ieee")', "tl.dot(q, tl.trans(k))"),),
        frozenset(),
        KERNEL,
    ),
]
