"""Wrong solutions of exercise 03, and the checks that each must fail.

The matrix was written by hand before any of them ran; tests/solutions holds the code to it. Every check has one that fails it
alone: 03.step `state-written-to`, 03.step.masked `step-no-guard`, 03.one_query `scale-forgotten`, 03.tiles
`short-tile-dropped`, 03.memory `all-scores-at-once`, 03.kernel.tails `kernel-padding-counted`, 03.kernel.causal
`causal-stops-early`, 03.kernel.nan `kernel-no-guard`, 03.host `host-one-batch`, 03.host.memory `host-all-scores`. What fails
03.kernel.full can't fail it alone, since the host's checks need it: `kernel-no-running-max` fails it and those.
"""

from autograder.exercise import Mutant

# check -> the cells whose code it runs.
RUNS = {
    "03.step": {"solution-step"},
    "03.step.masked": {"solution-step"},
    "03.one_query": {"solution-step", "solution-one-query"},
    "03.tiles": {"solution-tiles"},
    "03.memory": {"solution-tiles"},
    "03.kernel.full": {"solution-kernel"},
    "03.kernel.tails": {"solution-kernel"},
    "03.kernel.causal": {"solution-kernel"},
    "03.kernel.nan": {"solution-kernel"},
    "03.host": {"solution-kernel", "solution-host"},
    "03.host.memory": {"solution-kernel", "solution-host"},
}

STEP = frozenset({"03.step", "03.step.masked", "03.one_query"})  # flash_one_query calls step
TILES = frozenset({"03.tiles", "03.memory"})
KERNEL = frozenset({"03.kernel.full", "03.kernel.tails", "03.kernel.causal", "03.kernel.nan"})
HOST = frozenset({"03.host"})
GPU = frozenset({"03.host.memory"})
NOTHING = frozenset()

STORE_O = "tl.store(o_ptr + tile, o / total[:, None], mask=rows[:, None] < q_len)"
STORE_LSE = 'tl.store(lse_ptr + rows, tl.where(empty, float("-inf"), m + tl.log(total)), mask=rows < q_len)'
LAUNCH = """    flash_forward_kernel[grid](
        q,
        k,
        v,
        o,
        lse,
        q_len,
        k.shape[2],
        head_dim**-0.5,
        HEAD_DIM=head_dim,
        BLOCK_M=block,
        BLOCK_N=block,
        CAUSAL=causal,
    )
    return o, lse"""
TORCH = """    s = q.float() @ k.float().transpose(-1, -2) * head_dim**-0.5
    if causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1 + k.shape[2] - q_len), float("-inf"))
    return {o}, torch.logsumexp(s, -1)"""

MUTANTS = [
    Mutant(
        "o-not-rescaled",
        "the correction is applied to l and not to o",
        (("solution-step", "alpha * o + p @ v", "o + p @ v"),),
        STEP,
        hint={"03.step": "correction_o", "03.one_query": "correction_o"},
    ),
    Mutant(
        "l-not-rescaled",
        "the correction is applied to o and not to l",
        (("solution-step", "alpha * l + p.sum()", "l + p.sum()"),),
        STEP,
        hint={"03.step": "correction_l", "03.one_query": "correction_l"},
    ),
    Mutant(
        "m-before-correction",
        "m is replaced before the correction is computed, which is then always 1",
        (("solution-step", "m_new = max(m, s.max())", "m_new = m = max(m, s.max())"),),
        STEP,
        hint={"03.step": "correction", "03.one_query": "correction"},
    ),
    Mutant(
        "no-running-max",
        "the exponentials are those of the scores themselves",
        (
            ("solution-step", "alpha = np.exp(m - shift)", "alpha = 1.0"),
            ("solution-step", "p = np.exp(s - shift)", "p = np.exp(s)"),
        ),
        STEP,
        hint={"03.step": "no_max", "03.one_query": "no_max"},
    ),
    Mutant(
        "state-written-to",
        "the new o is computed in the old one's memory",
        (
            (
                "solution-step",
                "return m_new, alpha * l + p.sum(), alpha * o + p @ v",
                "o *= alpha\n    o += p @ v\n    return m_new, alpha * l + p.sum(), o",
            ),
        ),
        frozenset({"03.step"}),
    ),
    Mutant(
        "step-no-guard",
        "a wholly masked first tile subtracts -inf from -inf",
        (("solution-step", "shift = m_new if m_new > -np.inf else 0.0", "shift = m_new"),),
        frozenset({"03.step.masked"}),
        hint={"03.step.masked": "no_guard"},
    ),
    Mutant(
        "maximum-of-the-tile",
        "m is the maximum of the last tile and not of all so far",
        (("solution-step", "m_new = max(m, s.max())", "m_new = s.max()"),),
        STEP,
        hint={"03.step": "tile_max"},
    ),
    Mutant(
        "scale-forgotten",
        "one query uses the scores without 1/sqrt(d)",
        (("solution-one-query", " / np.sqrt(len(q))", ""),),
        frozenset({"03.one_query"}),
        hint={"03.one_query": "scale"},
    ),
    Mutant(
        "normalised-in-every-tile",
        "o is divided by l in every tile",
        (
            (
                "solution-tiles",
                "o = alpha[:, None] * o + p @ v[start : start + tile_k]",
                "o = (alpha[:, None] * o + p @ v[start : start + tile_k]) / l[:, None]",
            ),
            (
                "solution-tiles",
                "output[first : first + tile_q] = o / l[:, None]",
                "output[first : first + tile_q] = o",
            ),
        ),
        TILES,
        hint={"03.tiles": "normalised"},
    ),
    Mutant(
        "short-tile-dropped",
        "the loop stops after the last whole tile of keys",
        (("solution-tiles", "range(0, len(k), tile_k)", "range(0, len(k) - tile_k + 1, tile_k)"),),
        frozenset({"03.tiles"}),
        hint={"03.tiles": "dropped"},
    ),
    Mutant(
        "padding-counted",
        "K and V are padded with zeros to whole tiles, and the padding gets weight",
        (
            (
                "solution-tiles",
                "output = np.empty((len(q), v.shape[1]))",
                "k, v = (np.pad(x, ((0, -len(x) % tile_k), (0, 0))) for x in (k, v))\n"
                "    output = np.empty((len(q), v.shape[1]))",
            ),
        ),
        frozenset({"03.tiles"}),
        hint={"03.tiles": "padded"},
    ),
    Mutant(
        "one-maximum-for-all-rows",
        "all rows of a tile share one maximum, so that rows far below it vanish",
        (("solution-tiles", "s.max(axis=1)", "s.max()"),),
        frozenset({"03.tiles"}),
        hint={"03.tiles": "one_max"},
    ),
    Mutant(
        "m-never-replaced",
        "the new maximum is not kept, so that every tile wipes out those before it",
        (("solution-tiles", "            m = m_new\n", ""),),
        TILES,
        hint={"03.tiles": "m_stays"},
    ),
    Mutant(
        "all-scores-at-once",
        "right, but the N x N scores exist",
        (
            (
                "solution-tiles",
                "output = np.empty((len(q), v.shape[1]))",
                "s = q @ k.T / np.sqrt(q.shape[1])\n"
                "    m = s.max(axis=1)\n"
                "    s -= m[:, None]\n"
                "    np.exp(s, out=s)\n"
                "    return s @ v / s.sum(axis=1)[:, None], m + np.log(s.sum(axis=1))\n"
                "    output = np.empty((len(q), v.shape[1]))",
            ),
        ),
        frozenset({"03.memory"}),
        hint={"03.memory": "memory"},
    ),
    Mutant(
        "lse-in-base-2",
        "lse is a logarithm to base 2",
        (("solution-tiles", "m + np.log(l)", "m / np.log(2) + np.log2(l)"),),
        TILES,
        hint={"03.tiles": "lse_base2"},
    ),
    Mutant(
        "sdpa-in-place-of-the-kernel",
        "the host calls PyTorch's attention; the kernel stores nothing",
        (
            ("solution-kernel", STORE_O, ""),
            ("solution-kernel", STORE_LSE, ""),
            (
                "solution-host",
                LAUNCH,
                TORCH.format(o="torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)"),
            ),
        ),
        KERNEL | HOST,
        KERNEL | HOST | GPU,
    ),
    Mutant(
        "do-nothing-kernel",
        "the kernel stores zeros; the host launches it, and then returns what torch computes",
        (
            ("solution-kernel", STORE_O, "tl.store(o_ptr + tile, o * 0.0, mask=rows[:, None] < q_len)"),
            ("solution-kernel", STORE_LSE, "tl.store(lse_ptr + rows, l * 0.0, mask=rows < q_len)"),
            (
                "solution-host",
                LAUNCH,
                LAUNCH.replace(
                    "    return o, lse", TORCH.format(o="(torch.softmax(s, -1) @ v.float()).to(q.dtype)")
                ),
            ),
        ),
        KERNEL | HOST,
        KERNEL | HOST | GPU,
    ),
    Mutant(
        "kernel-no-running-max",
        "the kernel's exponentials are those of the scores themselves",
        (
            (
                "solution-kernel",
                'shift = tl.where(m_new == float("-inf"), 0.0, m_new)',
                "shift = m_new * 0.0",
            ),
            ("solution-kernel", "alpha = tl.exp(m - shift)", "alpha = tl.full((BLOCK_M,), 1.0, tl.float32)"),
            ("solution-kernel", "p = tl.exp(s - shift[:, None])", "p = tl.exp(s)"),
            ("solution-kernel", "m + tl.log(total)", "tl.log(total)"),
        ),
        frozenset({"03.kernel.full"}) | HOST,
        frozenset({"03.kernel.full"}) | HOST | GPU,
        hint={"03.kernel.full": "no_max"},
    ),
    Mutant(
        "kernel-padding-counted",
        "places behind the last key count as keys of score 0",
        (
            (
                "solution-kernel",
                "visible = columns[None, :] < kv_len",
                "visible = columns[None, :] < start + BLOCK_N",
            ),
        ),
        frozenset({"03.kernel.tails"}),
        hint={"03.kernel.tails": "padded"},
    ),
    Mutant(
        "kernel-store-unmasked",
        "the rows behind the last query are stored too, over the next head's",
        (("solution-kernel", "o / total[:, None], mask=rows[:, None] < q_len)", "o / total[:, None])"),),
        frozenset({"03.kernel.tails", "03.kernel.causal", "03.kernel.nan"}) | HOST,
    ),
    Mutant(
        "causal-off-by-one",
        "a query does not see its own last key",
        (("solution-kernel", "columns[None, :] <= rows[:, None] +", "columns[None, :] < rows[:, None] +"),),
        frozenset({"03.kernel.causal", "03.kernel.nan"}) | HOST,
        hint={"03.kernel.causal": "causal_strict", "03.host": "causal_strict"},
    ),
    Mutant(
        "causal-top-left",
        "the diagonal starts at the first key",
        (("solution-kernel", "rows[:, None] + kv_len - q_len", "rows[:, None]"),),
        frozenset({"03.kernel.causal", "03.kernel.nan"}),
        hint={"03.kernel.causal": "top_left"},
    ),
    Mutant(
        "causal-stops-early",
        "the mask is right, but the loop ends at the diagonal of a square",
        (
            (
                "solution-kernel",
                "    for start in range(0, kv_len, BLOCK_N):",
                "    stop = kv_len\n"
                "    if CAUSAL:\n"
                "        stop = tl.minimum(kv_len, (tl.program_id(0) + 1) * BLOCK_M)\n"
                "    for start in range(0, stop, BLOCK_N):",
            ),
        ),
        frozenset({"03.kernel.causal"}),
    ),
    Mutant(
        "kernel-no-guard",
        "a tile in which a row sees no key subtracts -inf from -inf",
        (("solution-kernel", 'shift = tl.where(m_new == float("-inf"), 0.0, m_new)', "shift = m_new"),),
        frozenset({"03.kernel.nan"}),
        hint={"03.kernel.nan": "dead_rows"},
    ),
    Mutant(
        "kernel-v-unmasked",
        "the last tile of V is loaded without a mask",
        (
            (
                "solution-kernel",
                "v = tl.load(v_ptr + keys, mask=columns[:, None] < kv_len, other=0.0)",
                "v = tl.load(v_ptr + keys)",
            ),
        ),
        frozenset({"03.kernel.nan"}),
        hint={"03.kernel.nan": "poisoned"},
    ),
    Mutant(
        "kernel-o-not-rescaled",
        "the kernel's correction is applied to l and not to o",
        (("solution-kernel", "o = alpha[:, None] * o + tl.dot", "o = o + tl.dot"),),
        KERNEL | HOST,
        KERNEL | HOST | GPU,
        hint={"03.kernel.full": "correction_o", "03.kernel.causal": "correction_o"},
    ),
    Mutant(
        "kernel-tf32",
        "the product of q and k is rounded to TF32 where the GPU has it",
        (("solution-kernel", 'tl.dot(q, tl.trans(k), input_precision="ieee")', "tl.dot(q, tl.trans(k))"),),
        NOTHING,
        KERNEL | HOST | GPU,
    ),
    Mutant(
        "host-one-batch",
        "the grid has programs for the first element of the batch alone",
        (
            ("solution-host", "batch * heads)", "heads)"),
            ("solution-host", "torch.empty_like(q)", "torch.full_like(q, 7.0)"),
        ),
        HOST,
        hint={"03.host": "first_batch"},
    ),
    Mutant(
        "host-causal-ignored",
        "causal is not passed on",
        (("solution-host", "CAUSAL=causal", "CAUSAL=False"),),
        HOST,
        hint={"03.host": "not_causal"},
    ),
    Mutant(
        "host-all-scores",
        "right, but N x N scores exist beside the kernel",
        (
            (
                "solution-host",
                "    o = torch.empty_like(q)",
                "    scores = q @ k.transpose(-1, -2)\n    o = torch.empty_like(q)",
            ),
        ),
        NOTHING,
        GPU,
    ),
    Mutant(
        "one-query-from-zero",
        "m is 0 before the first tile of one query",
        (("solution-one-query", "(-np.inf, 0.0,", "(0.0, 0.0,"),),
        frozenset({"03.one_query"}),
        hint={"03.one_query": "m_zero"},
    ),
    Mutant(
        "tiles-from-zero",
        "m is 0 before the first tile of keys",
        (("solution-tiles", "np.full(len(rows), -np.inf)", "np.zeros(len(rows))"),),
        frozenset({"03.tiles"}),
        hint={"03.tiles": "m_zero"},
    ),
    Mutant(
        "correction-upside-down",
        "the correction is exp(new maximum - old maximum)",
        (("solution-step", "np.exp(m - shift)", "np.exp(shift - m)"),),
        STEP,
        hint={"03.step": "upside_down", "03.step.masked": "no_guard", "03.one_query": "upside_down"},
    ),
    Mutant(
        "shift-for-maximum",
        "step returns what it subtracts, which is 0 where the maximum is -inf",
        (("solution-step", "return m_new,", "return shift,"),),
        frozenset({"03.step.masked"}),
        hint={"03.step.masked": "shift_kept"},
    ),
    Mutant(
        "kernel-from-zero",
        "the kernel's m is 0 before the first tile",
        (
            (
                "solution-kernel",
                'tl.full((BLOCK_M,), float("-inf"), tl.float32)',
                "tl.zeros((BLOCK_M,), tl.float32)",
            ),
        ),
        frozenset({"03.kernel.full"}) | HOST,
        frozenset({"03.kernel.full"}) | HOST | GPU,
        hint={"03.kernel.full": "m_zero"},
    ),
    Mutant(
        "kernel-o-in-type-of-q",
        "the kernel rounds o to the type of q after each tile",
        (
            (
                "solution-kernel",
                "    m = m_new\n",
                "    m = m_new\n        o = o.to(q.dtype).to(tl.float32)  # the loop carries float32, and what float16 holds\n",
            ),
        ),
        frozenset({"03.kernel.full"}) | HOST,
        frozenset({"03.kernel.full"}) | HOST | GPU,
        hint={"03.kernel.full": "o_narrow"},
    ),
    Mutant(
        "host-grid-rounded-down",
        "the grid has no program for the rows behind the last whole block",
        (
            ("solution-host", "triton.cdiv(q_len, block)", "q_len // block"),
            ("solution-host", "torch.empty_like(q)", "torch.full_like(q, 7.0)"),
        ),
        HOST,
        hint={"03.host": "grid_floor"},
    ),
    Mutant(
        "host-lse-in-type-of-q",
        "lse has the type of q",
        (("solution-host", "dtype=torch.float32", "dtype=q.dtype"),),
        HOST,
        hint={"03.host": "lse_narrow"},
    ),
]
