# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Exercise 4: Masks and NaN
#
# *Which scores must never count, and how does one of them turn a whole output into NaN?*
#
# You write the mask that causal attention, ragged batches and sliding windows share, and the arithmetic that says which tiles
# need it, which do not, and which need not be loaded at all. Then you make NaN on purpose, and end it: in a step of your own, and in
# kernels that others broke. At the end stands a Triton kernel that takes a ragged, causal batch and visits no tile in vain.
#
# | part | you write | checks | points |
# |---|---|---|---|
# | 1 | `visible`: who sees whom | `04.visible`, `04.visible.window` | 3 + 2 |
# | 2 | `tile_kinds`, `key_tiles`: what a tile needs | `04.tiles`, `04.range` | 2 + 3 |
# | 3 | `hide_fewest`, `masked_step`: NaN made, then ended | `04.nan.made`, `04.nan.guard`, `04.nan.padding` | 2 + 2 + 2 |
# | 4 | `fooling_shift`: why -1e6 is not minus infinity | `04.stand_in` | 2 |
# | 5 | three broken kernels, mended | `04.bug.edge`, `.cache`, `.band` | 2 + 2 + 2 |
# | 6 | `masked_forward_kernel`: all of it in Triton | `04.kernel.ragged`, `.nan`, `.skips` | 4 + 3 + 3 |
#
# Every check has points of its own. Part 2 may call your `visible`, so a mistake there can show in both; nothing else depends on
# another part, except that the tiles which your kernel visits count only when what it computes in them is right. A check runs
# public cases here and shows each of them; the grader repeats it with other sizes and other numbers of the same kinds. You may
# add cells wherever you like, and they are kept. The cells with a `check` and the set-up cell are replaced by the originals when
# you are graded.

# %% [markdown]
# ## What you need
#
# The set-up cell below prepares each of these places. Run it first, and again after every restart of the kernel.
#
# - **JupyterLab or VS Code** in the course's folder: `make lab` once, then choose the kernel of `.venv`.
# - **Colab**: open this notebook there and run the cell; it installs the course from
#   <{{repository}}>. For parts 5 and 6 a GPU runtime is faster, but not needed.
# - **No GPU**: Triton runs your kernel in its interpreter, in Python, on the CPU. It is slow and gives the same results.
# - **macOS and native Windows**: Triton has no build there. Parts 1 to 4 work; for 5 and 6 the set-up cell says where to go.

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import importlib.util
import os
import subprocess
import sys

REPOSITORY = "{{repository}}"
if "google.colab" in sys.modules and importlib.util.find_spec("autograder") is None:
    # Colab brings NumPy, torch, Triton and Matplotlib; with --no-deps its own versions stay.
    for what in (["--no-deps", f"git+{REPOSITORY}"], ["anywidget"]):
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *what], check=True)

import numpy as np

from autograder import check

HAS_TRITON = importlib.util.find_spec("triton") is not None
ON_GPU = False
if HAS_TRITON:
    import torch

    ON_GPU = torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1"
    if not ON_GPU:
        os.environ["TRITON_INTERPRET"] = "1"  # triton reads it while it is imported
    import triton
    import triton.language as tl

    print(
        "Parts 5 and 6 run",
        f"on {torch.cuda.get_device_name()}." if ON_GPU else "in Triton's interpreter, on the CPU.",
    )
else:
    print(
        "Parts 5 and 6 wait: Triton has no build for this system. Do them in Colab, the dev container or WSL."
    )

    class triton:  # a stand-in that lets the cells of parts 5 and 6 be read and run; their checks wait
        jit = staticmethod(lambda kernel: kernel)

    class tl:
        constexpr = int


# %% [markdown]
# ## A ragged batch, tile by tile
#
# Three sequences share a batch that has room for the longest. Each square of the map is a tile: full, partial or empty. Choose a
# query and step through its tiles, once with the guard and once without it, and watch where the NaN starts and what it takes
# with it.

# %%
try:
    from widgets import Masks

    masks = Masks()
except ImportError:
    masks = "The simulator is part of the course's site: chapter 4, Masks and NaN."
masks

# %% [markdown]
# `masks.window = None` in a cell of your own changes the picture.

# %% [markdown]
# ## Part 1: who sees whom
#
# Write `visible(i_q, i_k, q_len, kv_len, causal, window)`, the one place that decides which query may see which key. It is asked
# about a tile: some queries against some keys, and a tile may reach past the end of its sequence.
#
# ```text
# i_q            rows x 1    indices of queries in their sequence, 0, 1, ...; from q_len on there is no token
# i_k            keys        indices of keys; from kv_len on there is no token
# q_len, kv_len  int         how many queries and keys this sequence has
# causal         bool        hide the keys after the query's own place
# window         int, None   hide the keys that are `window` or more away from the query's place, on either side
# return         rows x keys booleans: may this query see this key?
# ```
#
# The **place** of query $i$ among the keys is $i + \text{kv\_len} - \text{q\_len}$: the last query stands at the last key. So two
# queries that continue a text of 98 tokens stand at keys 98 and 99, and see what came before them.
#
# A common mistake: to compare $j$ with $i$ itself. With as many queries as keys nobody notices.
#
# The page of chapter 4 shows the library's version of this part and the next. You learn more if you write yours first.
#
# <details><summary>A nudge</summary>
# One subtraction says how far a key lies ahead of a query's place; negative is behind. Everything else is a comparison with that.
# </details>
# <details><summary>The idea</summary>
# Start with "both tokens exist", and join one more condition for causal and one for the window, each only when it is asked for. A column compared with a row gives a table.
# </details>
# <details><summary>The outline</summary>
# ahead = i_k minus the place of i_q; seen = (i_q &lt; q_len) &amp; (i_k &lt; kv_len); with causal also ahead &lt;= 0; with a window also the absolute value of ahead &lt; window.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-visible", "locked": false, "schema_version": 3, "solution": true, "task": false}
def visible(i_q, i_k, q_len, kv_len, causal=False, window=None):
    """Booleans (rows, keys): may query i_q (rows, 1) see key i_k (keys,)?"""
    ### BEGIN SOLUTION
    ahead = i_k - (i_q + kv_len - q_len)
    seen = (i_q < q_len) & (i_k < kv_len)
    if causal:
        seen = seen & (ahead <= 0)
    if window is not None:
        seen = seen & (np.abs(ahead) < window)
    return seen
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-04-visible", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("04.visible", visible)

# %% [markdown]
# ### A sliding window
#
# With `causal` a window of 3 leaves a query its own key and the two before it. Without, it leaves two on each side.

# %% nbgrader={"grade": true, "grade_id": "check-04-visible-window", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("04.visible.window", visible)

# %% [markdown]
# ## Part 2: what a tile needs
#
# A mask of all scores is as large as the scores, so a kernel makes it tile by tile, and only where it has to. Write
# `tile_kinds(q_len, kv_len, tile_q, tile_k, causal, window)`.
#
# ```text
# return   (tiles of queries) x (tiles of keys), integers
#          0  empty     no query sees any key of it: it need not be loaded
#          2  full      every query sees every key of it: it needs no mask
#          1  partial   anything else
# ```
#
# The tiles start at 0, and the last ones may reach past the end; rows and slots behind the end see nothing and are not seen, as
# in part 1.
#
# <details><summary>A nudge</summary>
# Ask visible about everything at once. The sizes here are small.
# </details>
# <details><summary>The idea</summary>
# Round both lengths up to whole tiles. A table of (a * tile_q) x (b * tile_k) booleans, reshaped to a x tile_q x b x tile_k, has one tile along two of its four axes.
# </details>
# <details><summary>The outline</summary>
# -(-q_len // tile_q) tiles of queries, the same for keys; visible of two aranges over all their slots; reshape; any and all along axes 1 and 3; the answer is their sum, once any is made whole numbers with .astype(int). (The sum of two arrays of booleans is "or" in NumPy, and has no 2.)
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-tiles", "locked": false, "schema_version": 3, "solution": true, "task": false}
def tile_kinds(q_len, kv_len, tile_q, tile_k, causal=False, window=None):
    """0 empty, 1 partial, 2 full, for each tile of queries and tile of keys."""
    ### BEGIN SOLUTION
    many_q, many_k = -(-q_len // tile_q), -(-kv_len // tile_k)
    rows = np.arange(many_q * tile_q)[:, None]
    seen = visible(rows, np.arange(many_k * tile_k), q_len, kv_len, causal, window)
    seen = seen.reshape(many_q, tile_q, many_k, tile_k)
    return seen.any((1, 3)).astype(int) + seen.all((1, 3))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-04-tiles", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("04.tiles", tile_kinds)

# %% [markdown]
# ### Which tiles to visit
#
# A kernel can't try all tiles to find those that it may skip: that would be the loop it wants to avoid. Write
# `key_tiles(first, last, q_len, kv_len, tile_k, causal, window)`, which says by arithmetic alone where the walk of one tile of queries begins
# and ends. Two of the cases have $2^{40}$ keys: a loop over those does not come to an end.
#
# ```text
# first, last   int          the first and the last query of the tile; both exist
# return        (begin, end) numbers of tiles of keys: begin, ..., end - 1 are those in which some query
#                            of first .. last sees a key. (0, 0) if there is none.
# ```
#
# A common mistake: an end that lacks the + 1. The last query's own key is then lost whenever it is the first one of its tile,
# which never happens while lengths are equal and multiples of the tile.
#
# <details><summary>A nudge</summary>
# Of all these queries, which one sees furthest back, and which one furthest ahead?
# </details>
# <details><summary>The idea</summary>
# Find the keys first, then the tiles. The first key: 0, or window - 1 before the place of `first`. One behind the last key: kv_len, or one behind the place of `last`, or window behind it. Then cut both to what exists.
# </details>
# <details><summary>The outline</summary>
# place = kv_len - q_len. begin = max(0, first + place - window + 1) with a window, else 0. end = kv_len, lowered by min to last + place + 1 with causal and to last + place + window with a window. If end &lt;= begin return (0, 0). Round begin down and end up to whole tiles.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-range", "locked": false, "schema_version": 3, "solution": true, "task": false}
def key_tiles(first, last, q_len, kv_len, tile_k, causal=False, window=None):
    """(begin, end) of the tiles of keys in which a query of first .. last sees anything."""
    ### BEGIN SOLUTION
    place = kv_len - q_len
    begin, end = 0, kv_len
    if causal:
        end = min(end, last + place + 1)
    if window is not None:
        begin = max(begin, first + place - window + 1)
        end = min(end, last + place + window)
    if end <= begin:
        return 0, 0
    return begin // tile_k, -(-end // tile_k)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-04-range", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("04.range", key_tiles)

# %% [markdown]
# ### Your own measurement
#
# Not graded. How much of a padded, causal batch is worth visiting? The cell counts the tiles of three batches by their kind.


# %%
def count_kinds(room=2048, tile=64):
    batches = {
        "all of full length": [room] * 8,
        "lengths spread evenly": [room * (i + 1) // 8 for i in range(8)],
        "one long, seven short": [room] + [room // 16] * 7,
    }
    print(f"8 sequences with room for {room} tokens, tiles of {tile}, causal")
    for name, lengths in batches.items():
        counts = np.zeros(3, int)
        for n in lengths:
            kinds = tile_kinds(n, n, tile, tile, True)
            if kinds is None:
                print("tile_kinds returns nothing yet: write it first.")
                return
            counts += np.bincount(np.ravel(kinds), minlength=3)
        everything = 8 * (room // tile) ** 2
        visited = counts[1] + counts[2]
        print(
            f"{name:>22}: {visited:5} of {everything} tiles visited ({visited / everything:4.0%}), "
            f"{counts[1]:4} of them with a mask"
        )


count_kinds()

# %% [markdown]
# ## Part 3: NaN, made and ended
#
# This is exercise 2's step for one row of scores, without the guard. It runs here as it stands, and the check runs it as well.


# %%
def naive_softmax(s, tile):
    """(m, l) of a row of scores, a tile at a time, with no guard."""
    m, l = -np.inf, 0.0
    for start in range(0, len(s), tile):
        m_new = max(m, s[start : start + tile].max())
        l = np.exp(m - m_new) * l + np.exp(s[start : start + tile] - m_new).sum()
        m = m_new
    return m, l


naive_softmax(np.array([0.5, -1.0, 2.0, 0.0]), tile=2)

# %% [markdown]
# Write `hide_fewest(s, tile)`: a copy of the scores `s` in which **as few of them as possible** are `-inf`, and which makes
# `naive_softmax` end in NaN. The scores that come in are finite.
#
# ```text
# s        n           finite scores; leave the given array as it is
# tile     int         scores in a tile; the last tile may be short
# return   n           the same scores, some of them -inf
# ```
#
# The check has its own copy of the loop. It tries every set of scores, small sets first, until one breaks it, and compares.
#
# <details><summary>A nudge</summary>
# Which of the two subtractions can have -inf on both sides? What must be true of m, and what of m_new?
# </details>
# <details><summary>The idea</summary>
# Once a finite score was seen, m is finite and stays so. So the accident has to happen before that, and it takes a whole tile.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-made", "locked": false, "schema_version": 3, "solution": true, "task": false}
def hide_fewest(s, tile):
    """A copy of the scores s (n,) with the fewest at -inf that break naive_softmax(s, tile)."""
    ### BEGIN SOLUTION
    hidden = s.copy()
    hidden[:tile] = -np.inf
    return hidden
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-04-nan-made", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("04.nan.made", hide_fewest)

# %%
broken = hide_fewest(np.array([0.5, -1.0, 2.0, 0.0, 1.0, 1.5]), 2)
if broken is not None:
    print("scores:", broken)
    with np.errstate(invalid="ignore"):
        print("(m, l):", naive_softmax(broken, 2))

# %% [markdown]
# ### The step that survives
#
# Four of those six scores were fine, and still nothing is left of the row. Write `masked_step(state, s, seen, v)`, for several rows at
# once, with the mask as an argument. It never gives NaN for a slot that is hidden from all of these rows.
#
# ```text
# state    m     rows        -inf in a row that has seen nothing so far; then l and o are 0
#          l     rows
#          o     rows x dv   not divided by l
# s        rows x n          scores of this tile
# seen     rows x n          booleans: may this row see this key?
# v        n x dv            values
# return   (m, l, o)         the new state
# ```
#
# A common mistake: a guard for the weights alone. The correction `exp(m - m_new)` has the same subtraction in it.
#
# <details><summary>A nudge</summary>
# In a row that has seen nothing, what should exp(s - something) and exp(m - something) be, and which numbers in place of something give that?
# </details>
# <details><summary>The idea</summary>
# The new maximum may well be -inf; it only must not be subtracted. Subtract a second number, the shift, which is 0 in such a row and the new maximum in any other.
# </details>
# <details><summary>The outline</summary>
# s becomes -inf where it is not seen, by np.where. Then m_new; shift = np.where(m_new == -inf, 0, m_new); alpha = exp(m - shift); p = exp(s - shift[:, None]); l and o as in exercise 3; return m_new, and not the shift.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-step", "locked": false, "schema_version": 3, "solution": true, "task": false}
def masked_step(state, s, seen, v):
    """The state (m, l, o) of all rows after one more tile of scores s, of which `seen` may be seen."""
    m, l, o = state
    ### BEGIN SOLUTION
    s = np.where(seen, s, -np.inf)
    v = np.where(seen.any(axis=0)[:, None], v, 0.0)
    m_new = np.maximum(m, s.max(axis=1))
    shift = np.where(m_new == -np.inf, 0.0, m_new)
    alpha = np.exp(m - shift)
    p = np.exp(s - shift[:, None])
    return m_new, alpha * l + p.sum(axis=1), alpha[:, None] * o + p @ v
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-04-nan-guard", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("04.nan.guard", masked_step)

# %% [markdown]
# ### NaN that sleeps in padding
#
# A slot behind the length was never written by this sequence. It may hold what an earlier one left there, or NaN. Its score is
# NaN then, or infinite, and so is its value, and none of it may reach the state. Come back to `masked_step` until this check passes as well.
#
# A common mistake: to trust the weight. The weight of a hidden slot is exactly 0, and 0 * NaN is NaN. The other way to go wrong is to
# clean too much: an infinity or a NaN in a slot that *is* seen comes from the model, and has to show. A slot that any row sees is kept as it is:
# what is in it may then show in the other rows of the tile as well.
#
# <details><summary>A nudge</summary>
# Two of your inputs may hold NaN. Print which of your five lines is the first whose result has one.
# </details>
# <details><summary>The idea</summary>
# For the scores it matters how the mask is applied: choose, do not add. For the values the mask has to be turned into one answer for each slot: does any row see it?
# </details>
# <details><summary>The outline</summary>
# np.where(seen, s, -inf) for the scores; for the values np.where(seen.any(axis=0)[:, None], v, 0) before the product.
# </details>

# %% nbgrader={"grade": true, "grade_id": "check-04-nan-padding", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("04.nan.padding", masked_step)

# %% [markdown]
# ## Part 4: why -1e6 is not minus infinity
#
# Many programs mask with a large negative number and need no guard. It works, until the visible scores are as low as the number.
# Softmax does not notice a shift: with $-\infty$ for the hidden keys, any $t$ may be added to all visible scores and no weight changes. With a
# finite stand-in $c$ it notices. Write `fooling_shift(s, hidden, stand_in)`: the $t$ at which the hidden keys together have exactly
# **half** of the weight.
#
# ```text
# s          n       scores of the visible keys
# hidden     int     how many keys are masked, at least 1
# stand_in   float   the score c that each of them gets in place of -inf, such as -1e6
# return     float   t, such that softmax over s + t and `hidden` times c leaves the hidden keys 1/2
# ```
#
# $$
# \sum_j e^{s_j + t} = \text{hidden} \cdot e^{c}
# $$
#
# A common mistake: to take the exponentials as they stand. $e^{-10^6}$ is 0, and $e^{1000}$ is infinite.
#
# <details><summary>A nudge</summary>
# Take the logarithm of both sides. What is the logarithm of the left one called?
# </details>
# <details><summary>The idea</summary>
# t + lse(s) = c + log(hidden), with lse as in exercise 2: the maximum plus the logarithm of a sum of exponentials relative to it.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-stand-in", "locked": false, "schema_version": 3, "solution": true, "task": false}
def fooling_shift(s, hidden, stand_in):
    """The t for which softmax of s + t beside `hidden` scores of `stand_in` gives those half of the weight."""
    ### BEGIN SOLUTION
    m = s.max()
    return stand_in + np.log(hidden) - (m + np.log(np.exp(s - m).sum()))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-04-stand-in", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("04.stand_in", fooling_shift)

# %% [markdown]
# ### Try it
#
# Not graded. Three visible keys with the values 1, 2 and 3, and five hidden ones with the value 100. Then the row that sees
# nothing at all, where no shift is needed.


# %%
def compare_masks(stand_in=-1e6):
    s, values = np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0] + [100.0] * 5)
    t = fooling_shift(s, 5, stand_in)
    if t is None:
        print("fooling_shift returns nothing yet: write it first.")
        return
    for shift in (0.0, t / 2, t, t - 10):
        for mask in (-np.inf, stand_in):
            scores = np.concatenate([s + shift, np.full(5, mask)])
            w = np.exp(scores - scores.max())
            print(f"visible scores {shift:+11.1f}, mask {mask:9}: output {w @ values / w.sum():7.3f}")
    print(
        f"no visible key, mask {stand_in}: output {values[3:].mean():.3f}, where there is nothing to attend to"
    )


compare_masks()

# %% [markdown]
# ## Part 5: three broken kernels
#
# Each of these kernels came with a test that passes. Each has **one** fault, in one or two lines, and the three are of different kinds. The cell of
# each shows the table of its check: which cases work and which do not is the best clue. Then write the mended kernel in the cell
# below; leave the broken one as it is, to compare.
#
# ```text
# q_ptr          heads x q_len x HEAD_DIM       contiguous; batch and heads are one axis
# k_ptr, v_ptr   heads x kv_len x HEAD_DIM
# o_ptr          heads x q_len x HEAD_DIM
# lse_ptr        heads x q_len                  float32, natural logarithm
# scale          float                          1 / sqrt(HEAD_DIM)
# grid           cdiv(q_len, BLOCK_M), heads
# ```
#
# How to look for a fault:
#
# 1. Compare the cases that pass with those that fail: which number is in the one group and not in the other?
# 2. NaN, or a wrong number? NaN is made by arithmetic (infinity minus infinity, 0 / 0) or comes from memory (0 * NaN).
# 3. A wrong number: are rows wrong at the start, at the end, or all of them? One key too few, or one too many?
# 4. In the interpreter a kernel is Python: `print(start, m, l)` in the loop shows its state. On a GPU use `tl.device_print`.


# %%
def look(name, kernel):
    """Make a check and show its table. A check that fails stops the notebook; here it goes on."""
    if HAS_TRITON:
        try:
            check(name, kernel)
        except AssertionError as failed:
            print("it would stop with:", failed)


# %% [markdown]
# ### The first: causal, with an end
#
# It stops at the diagonal and does not load the tiles behind it. *"Tested with 64, 128 and 1024 tokens."*


# %%
@triton.jit
def broken_edge(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    q_len,
    kv_len,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Causal attention that ends each walk at the diagonal. Broken."""
    head = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    q_tile = (head * q_len + rows[:, None]) * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + q_tile, mask=rows[:, None] < q_len, other=0.0)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    o = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    last = first + BLOCK_M - 1
    end = tl.minimum(kv_len, last + kv_len - q_len)
    for start in range(0, end, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        k_tile = (head * kv_len + columns[:, None]) * HEAD_DIM + dims[None, :]
        k = tl.load(k_ptr + k_tile, mask=columns[:, None] < kv_len, other=0.0)
        v = tl.load(v_ptr + k_tile, mask=columns[:, None] < kv_len, other=0.0)
        seen = (columns[None, :] < kv_len) & (columns[None, :] <= rows[:, None] + kv_len - q_len)
        s = tl.where(seen, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
        alpha = tl.exp(m - shift)
        p = tl.exp(s - shift[:, None])
        l = alpha * l + tl.sum(p, 1)
        o = alpha[:, None] * o + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new
    total = tl.where(l == 0.0, 1.0, l)
    tl.store(o_ptr + q_tile, o / total[:, None], mask=rows[:, None] < q_len)
    tl.store(lse_ptr + head * q_len + rows, m + tl.log(total), mask=rows < q_len)


look("04.bug.edge", broken_edge)

# %% [markdown]
# Now mend it: `edge_kernel` takes the same arguments. Copy the body and change what is wrong.
#
# <details><summary>A nudge</summary>
# Take the number of keys minus the number of queries: for which of these differences does it work? Then look at the last tile of queries in a case that fails: which key is the last one that its last query sees, and does the loop reach it?
# </details>
# <details><summary>The idea</summary>
# The mask is right, and what the loop never loads no mask can bring back. Compare its end with what you wrote in part 2.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-edge", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def edge_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    q_len,
    kv_len,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Causal attention that visits no tile behind the diagonal."""
    ### BEGIN SOLUTION
    head = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    q_tile = (head * q_len + rows[:, None]) * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + q_tile, mask=rows[:, None] < q_len, other=0.0)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    o = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    last = first + BLOCK_M - 1
    end = tl.minimum(kv_len, last + kv_len - q_len + 1)
    for start in range(0, end, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        k_tile = (head * kv_len + columns[:, None]) * HEAD_DIM + dims[None, :]
        k = tl.load(k_ptr + k_tile, mask=columns[:, None] < kv_len, other=0.0)
        v = tl.load(v_ptr + k_tile, mask=columns[:, None] < kv_len, other=0.0)
        seen = (columns[None, :] < kv_len) & (columns[None, :] <= rows[:, None] + kv_len - q_len)
        s = tl.where(seen, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
        alpha = tl.exp(m - shift)
        p = tl.exp(s - shift[:, None])
        l = alpha * l + tl.sum(p, 1)
        o = alpha[:, None] * o + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new
    total = tl.where(l == 0.0, 1.0, l)
    tl.store(o_ptr + q_tile, o / total[:, None], mask=rows[:, None] < q_len)
    tl.store(lse_ptr + head * q_len + rows, m + tl.log(total), mask=rows < q_len)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-04-bug-edge", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("04.bug.edge", edge_kernel)

# %% [markdown]
# ### The second: a cache that is not full
#
# K and V have `kv_len` slots, and the first `used` of them hold keys. All queries see all of those. *"Tested with a new cache,
# at every length from 1 to 4096."*


# %%
@triton.jit
def broken_cache(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    q_len,
    kv_len,
    used,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Attention over the first `used` of kv_len slots. Broken."""
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    q_tile = (head * q_len + rows[:, None]) * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + q_tile, mask=rows[:, None] < q_len, other=0.0)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    o = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for start in range(0, used, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        k_tile = (head * kv_len + columns[:, None]) * HEAD_DIM + dims[None, :]
        inside = columns[:, None] < kv_len
        k = tl.load(k_ptr + k_tile, mask=inside, other=0.0)
        v = tl.load(v_ptr + k_tile, mask=inside, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where(columns[None, :] < used, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
        alpha = tl.exp(m - shift)
        p = tl.exp(s - shift[:, None])
        l = alpha * l + tl.sum(p, 1)
        o = alpha[:, None] * o + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new
    total = tl.where(l == 0.0, 1.0, l)
    tl.store(o_ptr + q_tile, o / total[:, None], mask=rows[:, None] < q_len)
    tl.store(lse_ptr + head * q_len + rows, m + tl.log(total), mask=rows < q_len)


look("04.bug.cache", broken_cache)

# %% [markdown]
# Now mend it: `cache_kernel` takes the same arguments. Copy the body and change what is wrong.
#
# <details><summary>A nudge</summary>
# NaN behind `used` does no harm in K and does in V, and only when the last tile that is in use is not whole. What happens to a score of NaN, and what to a value of NaN?
# </details>
# <details><summary>The idea</summary>
# Every load stays inside the tensor. That is not the same as inside what is in use.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-cache", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def cache_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    q_len,
    kv_len,
    used,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Attention over the first `used` of kv_len slots."""
    ### BEGIN SOLUTION
    head = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    q_tile = (head * q_len + rows[:, None]) * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + q_tile, mask=rows[:, None] < q_len, other=0.0)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    o = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for start in range(0, used, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        k_tile = (head * kv_len + columns[:, None]) * HEAD_DIM + dims[None, :]
        inside = columns[:, None] < used
        k = tl.load(k_ptr + k_tile, mask=inside, other=0.0)
        v = tl.load(v_ptr + k_tile, mask=inside, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where(columns[None, :] < used, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
        alpha = tl.exp(m - shift)
        p = tl.exp(s - shift[:, None])
        l = alpha * l + tl.sum(p, 1)
        o = alpha[:, None] * o + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new
    total = tl.where(l == 0.0, 1.0, l)
    tl.store(o_ptr + q_tile, o / total[:, None], mask=rows[:, None] < q_len)
    tl.store(lse_ptr + head * q_len + rows, m + tl.log(total), mask=rows < q_len)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-04-bug-cache", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("04.bug.cache", cache_kernel)

# %% [markdown]
# ### The third: a sliding window
#
# Causal, and each query sees its own key and the `window` - 1 before it. It starts at the first tile that any of its rows needs.
# *"Tested with a window of 4096, on texts of up to 4096 tokens. It has the guard."*


# %%
@triton.jit
def broken_band(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    q_len,
    kv_len,
    window,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Causal attention in a sliding window. Broken."""
    head = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    q_tile = (head * q_len + rows[:, None]) * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + q_tile, mask=rows[:, None] < q_len, other=0.0)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    o = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    begin = tl.maximum(first + kv_len - q_len - window + 1, 0) // BLOCK_N * BLOCK_N
    end = tl.minimum(kv_len, first + BLOCK_M + kv_len - q_len)
    for start in range(begin, end, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        k_tile = (head * kv_len + columns[:, None]) * HEAD_DIM + dims[None, :]
        k = tl.load(k_ptr + k_tile, mask=columns[:, None] < kv_len, other=0.0)
        v = tl.load(v_ptr + k_tile, mask=columns[:, None] < kv_len, other=0.0)
        ahead = columns[None, :] - (rows[:, None] + kv_len - q_len)
        seen = (columns[None, :] < kv_len) & (ahead <= 0) & (ahead > -window)
        s = tl.where(seen, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
        alpha = tl.exp(m - m_new)
        p = tl.exp(s - shift[:, None])
        l = alpha * l + tl.sum(p, 1)
        o = alpha[:, None] * o + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new
    total = tl.where(l == 0.0, 1.0, l)
    tl.store(o_ptr + q_tile, o / total[:, None], mask=rows[:, None] < q_len)
    tl.store(lse_ptr + head * q_len + rows, m + tl.log(total), mask=rows < q_len)


look("04.bug.band", broken_band)

# %% [markdown]
# Now mend it: `band_kernel` takes the same arguments. Copy the body and change what is wrong.
#
# <details><summary>A nudge</summary>
# Nothing in memory is NaN here, so arithmetic made it. Which rows see nothing in the first tile that their program visits?
# </details>
# <details><summary>The idea</summary>
# The walk starts where the first row's window starts. A later row of the same tile may see nothing there: its m is still -inf, and m_new as well. In which lines are those two subtracted?
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-band", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def band_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    q_len,
    kv_len,
    window,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Causal attention in a sliding window."""
    ### BEGIN SOLUTION
    head = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    q_tile = (head * q_len + rows[:, None]) * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + q_tile, mask=rows[:, None] < q_len, other=0.0)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    o = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    begin = tl.maximum(first + kv_len - q_len - window + 1, 0) // BLOCK_N * BLOCK_N
    end = tl.minimum(kv_len, first + BLOCK_M + kv_len - q_len)
    for start in range(begin, end, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        k_tile = (head * kv_len + columns[:, None]) * HEAD_DIM + dims[None, :]
        k = tl.load(k_ptr + k_tile, mask=columns[:, None] < kv_len, other=0.0)
        v = tl.load(v_ptr + k_tile, mask=columns[:, None] < kv_len, other=0.0)
        ahead = columns[None, :] - (rows[:, None] + kv_len - q_len)
        seen = (columns[None, :] < kv_len) & (ahead <= 0) & (ahead > -window)
        s = tl.where(seen, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
        alpha = tl.exp(m - shift)
        p = tl.exp(s - shift[:, None])
        l = alpha * l + tl.sum(p, 1)
        o = alpha[:, None] * o + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new
    total = tl.where(l == 0.0, 1.0, l)
    tl.store(o_ptr + q_tile, o / total[:, None], mask=rows[:, None] < q_len)
    tl.store(lse_ptr + head * q_len + rows, m + tl.log(total), mask=rows < q_len)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-04-bug-band", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("04.bug.band", band_kernel)

# %% [markdown]
# ## Part 6: the masked kernel
#
# Write `masked_forward_kernel`: exercise 3's kernel for a padded batch, in which every sequence has lengths of its own. It visits the tiles of keys in
# which its queries see anything, and no other.
#
# ```text
# q_ptr            (batch * heads) x q_len x HEAD_DIM    room for q_len queries in each sequence
# k_ptr, v_ptr     (batch * heads) x kv_len x HEAD_DIM   room for kv_len keys
# q_lens_ptr       batch                                 int32: how many queries a sequence has
# kv_lens_ptr      batch                                 int32: how many keys; both may be 0
# o_ptr            (batch * heads) x q_len x HEAD_DIM    of the type of q
# lse_ptr          (batch * heads) x q_len               float32, natural logarithm
# visited_ptr      (batch * heads) x cdiv(q_len, BLOCK_M)   float32: the tiles that each program visited
# heads            int                                   row r of the first axis belongs to sequence r // heads
# grid             cdiv(q_len, BLOCK_M), batch * heads
# ```
#
# The given lines have moved the pointers to this head, loaded the two lengths of its sequence as `q_used` and `kv_used`, and moved
# `visited_ptr` to the one number that this program writes: count the turns of your loop, and store the count. The last check looks at the
# count and at o. A slot behind a length may hold NaN. A row that sees no key, and a row behind `q_used`, gets o = 0 and lse = -inf, so that all of o and lse is written.
#
# A causal diagonal ends at the last query and key *of the sequence*: query `i` sees `j <= i + kv_used - q_used`.
#
# Write it in three rounds, one for each check below.
#
# 1. **Ragged and causal.** Start from your kernel of exercise 3, and ask of each `q_len` and `kv_len` in it: is this about memory, or about
#    tokens? Rows behind `q_used` see nothing, so this round needs the guard in both exponentials, and a division that bears l = 0.
# 2. **NaN.** Rows that see no key in any place, and the slots behind a length.
# 3. **Skips.** The end of the loop, as in part 2: at the length, at the diagonal, and at once for a tile of queries that lies wholly behind `q_used`.
#
# A common mistake: to mask a load by the room of the tensor. That keeps it from foreign memory, and not from padding. Another one: to count
# the head twice. The kernels of part 5 add `head * q_len` to their rows; here the pointers stand at this head already, and an address
# that adds it again lies in other memory, or in none.
#
# <details><summary>Ragged and causal: a nudge</summary>
# Addresses and the store are about memory: q_len, kv_len. Everything that decides who sees whom is about tokens: q_used, kv_used.
# </details>
# <details><summary>Ragged and causal: the idea</summary>
# The mask of part 1, word for word, with q_used and kv_used. Rows behind q_used then see nothing, and end like any other row that sees nothing: the guard of part 3 keeps them from NaN in the loop. After it l is 0 there: divide by 1, and store an lse of -inf.
# </details>
# <details><summary>NaN: the idea</summary>
# Load q where rows &lt; q_used, and k and v where columns &lt; kv_used, with other=0.0.
# </details>
# <details><summary>Skips: the idea</summary>
# The last query of this tile is first + BLOCK_M - 1 at most, and sees one key further than the one before it. end is the smaller one of kv_used and first + BLOCK_M + kv_used - q_used. A range whose end is 0 or below makes no turn. So where first &gt;= q_used make the end 0 with tl.where; do not return, since o, lse and the count are stored there as well.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-kernel", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def masked_forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    q_lens_ptr,
    kv_lens_ptr,
    o_ptr,
    lse_ptr,
    visited_ptr,
    heads,
    q_len,
    kv_len,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One head of one sequence, one tile of BLOCK_M queries, the tiles of BLOCK_N keys that it sees."""
    head = tl.program_id(1).to(tl.int64)  # an offset may pass 2^31
    q_ptr += head * q_len * HEAD_DIM
    k_ptr += head * kv_len * HEAD_DIM
    v_ptr += head * kv_len * HEAD_DIM
    o_ptr += head * q_len * HEAD_DIM
    lse_ptr += head * q_len
    visited_ptr += head * tl.num_programs(0) + tl.program_id(0)
    q_used = tl.load(q_lens_ptr + head // heads)
    kv_used = tl.load(kv_lens_ptr + head // heads)
    first = tl.program_id(0) * BLOCK_M
    rows = first + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    ### BEGIN SOLUTION
    tile = rows[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + tile, mask=rows[:, None] < q_used, other=0.0)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    o = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    end = kv_used
    if CAUSAL:
        end = tl.minimum(end, first + BLOCK_M + kv_used - q_used)
    end = tl.where(first < q_used, end, 0)
    visited = 0
    for start in range(0, end, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        keys = columns[:, None] * HEAD_DIM + dims[None, :]
        k = tl.load(k_ptr + keys, mask=columns[:, None] < kv_used, other=0.0)
        v = tl.load(v_ptr + keys, mask=columns[:, None] < kv_used, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = (rows[:, None] < q_used) & (columns[None, :] < kv_used)
        if CAUSAL:
            seen = seen & (columns[None, :] <= rows[:, None] + kv_used - q_used)
        s = tl.where(seen, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
        alpha = tl.exp(m - shift)
        p = tl.exp(s - shift[:, None])
        l = alpha * l + tl.sum(p, 1)
        o = alpha[:, None] * o + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new
        visited += 1
    empty = l == 0.0
    total = tl.where(empty, 1.0, l)
    tl.store(o_ptr + tile, o / total[:, None], mask=rows[:, None] < q_len)
    tl.store(lse_ptr + rows, tl.where(empty, float("-inf"), m + tl.log(total)), mask=rows < q_len)
    tl.store(visited_ptr, visited)
    ### END SOLUTION


# %% [markdown]
# **When it does not work**, go up this ladder with `try_kernel`; each rung is smaller than the check.
#
# 1. `try_kernel([16], [16])`: one sequence, one tile, no mask. Wrong here? Take your kernel of exercise 3 and change nothing but names.
# 2. `try_kernel([16], [16], causal=True)`: is each comparison of the mask in parentheses? `&` binds tighter than `<=`.
# 3. `try_kernel([16], [40], causal=True)`: the diagonal ends at the last key.
# 4. `try_kernel([5, 16], [7, 40])`: two sequences. Only the shorter one wrong? With NaN in rows 5 to 15: these see nothing, so look for the
#    guard and for l = 0. With numbers: look for `q_len` and `kv_len` in the mask. Both wrong? Is the head counted twice?
# 5. `try_kernel([20], [10], causal=True)`: the first 10 rows see nothing, and others of their tile do.
# 6. `try_kernel([5, 16], [7, 40], poison=True)`: NaN behind the lengths. Wrong only now? Look at the masks of the loads.


# %%
def try_kernel(q_lens, kv_lens, causal=False, poison=False, head_dim=16, block=16):
    """Launch your kernel on small random inputs, and print what it gives beside the plain formula."""
    torch.manual_seed(0)
    device = "cuda" if ON_GPU else "cpu"
    batch, q_len, kv_len = len(q_lens), max(q_lens), max(kv_lens)
    # Every array goes on behind its numbers, so that a kernel which goes too far is seen, and harms nothing else.
    room = batch * (max(q_len, kv_len) + block) * head_dim
    memory = [torch.randn(batch * n * head_dim + room, device=device) for n in (q_len, kv_len, kv_len)]
    q, k, v = (
        x[: batch * n * head_dim].view(batch, n, head_dim)
        for x, n in zip(memory, (q_len, kv_len, kv_len), strict=True)
    )
    clean = [x.clone() for x in (q, k, v)]
    if poison:
        for x, lens in zip((q, k, v), (q_lens, kv_lens, kv_lens), strict=True):
            for b, n in enumerate(lens):
                x[b, n:] = float("nan")
    tiles = triton.cdiv(q_len, block)
    shapes = {"o": q.shape, "lse": (batch, q_len), "visited": (batch, tiles)}
    outputs = {
        name: torch.full((np.prod(shape) + room,), float("nan"), device=device)
        for name, shape in shapes.items()
    }
    lens = [torch.tensor(n, dtype=torch.int32, device=device) for n in (q_lens, kv_lens)]
    sizes = {"HEAD_DIM": head_dim, "BLOCK_M": block, "BLOCK_N": block, "CAUSAL": causal}
    masked_forward_kernel[(tiles, batch)](
        *memory, *lens, *outputs.values(), 1, q_len, kv_len, head_dim**-0.5, **sizes
    )
    o, lse, visited = (outputs[name][: np.prod(shape)].view(shape) for name, shape in shapes.items())
    q, k, v = clean
    s = head_dim**-0.5 * (q @ k.mT).double()
    i, j = torch.arange(q_len, device=device)[:, None], torch.arange(kv_len, device=device)
    for b, (rows, keys) in enumerate(zip(q_lens, kv_lens, strict=True)):
        hidden = (i >= rows) | (j >= keys)
        if causal:
            hidden = hidden | (j > i + keys - rows)
        s[b].masked_fill_(hidden, float("-inf"))
    want = s.softmax(-1).nan_to_num() @ v.double()
    right_lse = torch.isclose(lse.double(), s.logsumexp(-1), rtol=0, atol=1e-4)
    for b in range(batch):
        error = (o[b] - want[b]).abs().amax(-1)
        wrong, wrong_lse = (
            torch.nonzero(~right).flatten().tolist() for right in (error < 1e-4, right_lse[b])
        )
        print(
            f"sequence {b}: largest error of o {error.max().item():.2g}, wrong rows {wrong}, rows with a wrong lse {wrong_lse}, "
            f"visited {visited[b].tolist()}"
        )
    for name, shape in shapes.items():
        many = int((~outputs[name][np.prod(shape) :].isnan()).sum())
        if many:
            print(
                f"Written past the end of {name}, {many} times: is the store masked, and the head counted only once?"
            )


# try_kernel([16], [16])    # rung 1

# %% [markdown]
# ### Round 1: ragged and causal

# %% nbgrader={"grade": true, "grade_id": "check-04-kernel-ragged", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
check("04.kernel.ragged", masked_forward_kernel)

# %% [markdown]
# ### Round 2: NaN

# %% nbgrader={"grade": true, "grade_id": "check-04-kernel-nan", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("04.kernel.nan", masked_forward_kernel)

# %% [markdown]
# ### Round 3: skips

# %% nbgrader={"grade": true, "grade_id": "check-04-kernel-skips", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("04.kernel.skips", masked_forward_kernel)

# %% [markdown]
# ### Your own measurement
#
# Not graded. What skipping is worth: your kernel on a full batch, on a causal one, and on a ragged causal one of the same room. Without a GPU the cell counts the
# tiles alone, at a small size. On a GPU it adds the time, the median of 20 launches after one that compiles. The two need not fall by the same factor: a tile of queries with few keys is
# done early, and what it leaves idle nobody else uses unless other programs wait.


# %%
def worth_of_skipping(batch=4, heads=8, room=4096, head_dim=64, block=64):
    if not HAS_TRITON:
        print("Triton has no build for this system.")
        return
    if not ON_GPU:
        batch, heads, room, head_dim, block = 4, 1, 96, 16, 16
    device, dtype = ("cuda", torch.float16) if ON_GPU else ("cpu", torch.float32)
    q, k, v = torch.randn(3, batch * heads, room, head_dim, device=device, dtype=dtype)
    tiles = triton.cdiv(room, block)
    full, ragged = [room] * batch, [room * (i + 1) // batch for i in range(batch)]
    print(f"{batch} sequences with room for {room} tokens, {heads} heads, tiles of {block}")
    for name, lens, causal in (
        ("full", full, False),
        ("causal", full, True),
        ("ragged, causal", ragged, True),
    ):
        o, lse = torch.empty_like(q), torch.empty(batch * heads, room, device=device)
        visited = torch.full((batch * heads, tiles), float("nan"), device=device)
        lengths = torch.tensor(lens, dtype=torch.int32, device=device)
        sizes = {"HEAD_DIM": head_dim, "BLOCK_M": block, "BLOCK_N": block, "CAUSAL": causal}

        def launch(lengths=lengths, outputs=(o, lse, visited), sizes=sizes):
            masked_forward_kernel[(tiles, batch * heads)](
                q, k, v, lengths, lengths, *outputs, heads, room, room, head_dim**-0.5, **sizes
            )

        launch()
        if visited.isnan().any():
            print("masked_forward_kernel stores no count yet: write it first.")
            return
        line = (
            f"{name:>16}: {visited.sum().item() / (batch * heads * tiles * tiles):4.0%} of the tiles visited"
        )
        if ON_GPU:
            times = []
            for _ in range(20):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                launch()
                end.record()
                torch.cuda.synchronize()
                times.append(begin.elapsed_time(end))
            line += f", {sorted(times)[10]:.3f} ms"
        print(line)


worth_of_skipping()

# %% [markdown]
# ## What you can now do
#
# You can write the one mask that causal, ragged and windowed attention share, say by arithmetic which tiles need it and which need no visit,
# and name the places where NaN can come from: infinity minus infinity in two exponentials, 0 / 0 at the end, and 0 * NaN from memory that
# nobody may see. The next chapters keep all of it: a cache, a page table and a split among programs only change where the next tile lies.

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S, or Cmd+S), then run this cell. It reads the saved file as the grader will, says what is missing,
# and packs it; upload the file that it names. It runs none of your code, and you may hand in as often as you like: the newest
# counts. Where the upload does not know who you are, write `handin(student="your id")`.

# %%
from autograder import handin

handin()
