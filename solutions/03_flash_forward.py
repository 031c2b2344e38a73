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
# # Exercise 3: FlashAttention, forward
#
# *How can attention be exact when no one ever holds all the scores?*
#
# You write the recurrence in NumPy, where you can look at every number, and then as one Triton kernel. At the end your own
# function attends over 8192 keys with a few MiB, where one array of all the scores needs 512, and you have measured it.
#
# | part | you write | checks | points |
# |---|---|---|---|
# | 1 | `step`: one tile into the state | `03.step`, `03.step.masked` | 3 + 2 |
# | 2 | `flash_one_query`: a loop over tiles | `03.one_query` | 3 |
# | 3 | `flash_attention`: tiles of queries | `03.tiles`, `03.memory` | 5 + 3 |
# | 4 | `flash_forward_kernel`: the same in Triton | `03.kernel.full`, `.tails`, `.causal`, `.nan` | 4 + 2 + 3 + 2 |
# | 5 | `flash_attention_triton`: allocate and launch | `03.host`, `03.host.memory` | 3 + 2 |
#
# Every check has points of its own. Part 2 calls your `step` and part 5 launches your kernel, so a mistake in one of those
# shows there as well; nothing else depends on another part. A check runs public cases here and shows each of them; the
# grader repeats it with other sizes and other numbers of the same kinds. You may add cells wherever you like, and they are
# kept. The cells with a `check` and the set-up cell are replaced by the originals when you are graded.

# %% [markdown]
# ## What you need
#
# The set-up cell below prepares each of these places. Run it first, and again after every restart of the kernel.
#
# - **JupyterLab or VS Code** in the course's folder: `make lab` once, then choose the kernel of `.venv`.
# - **Colab**: open this notebook there and run the cell; it installs the course from
#   <{{repository}}>. For parts 4 and 5 a GPU runtime is faster, but not needed.
# - **No GPU**: Triton runs your kernel in its interpreter, in Python, on the CPU. It is slow and gives the same results.
# - **macOS and native Windows**: Triton has no build there. Parts 1 to 3 work; for 4 and 5 the set-up cell says where to go.

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
        "Parts 4 and 5 run",
        f"on {torch.cuda.get_device_name()}." if ON_GPU else "in Triton's interpreter, on the CPU.",
    )
else:
    print(
        "Parts 4 and 5 wait: Triton has no build for this system. Do them in Colab, the dev container or WSL."
    )

    class triton:  # a stand-in that lets the cells of parts 4 and 5 be read and run; their checks wait
        jit = staticmethod(lambda kernel: kernel)

    class tl:
        constexpr = int


# %% [markdown]
# ## The recurrence, once more
#
# Sixteen scores arrive in tiles of four. Step through them (space or the arrow keys, once the picture has the focus), and
# watch what happens to `l` and `o` in the tile where the maximum moves.

# %%
try:
    from widgets import Stepper

    stepper = Stepper(preset="random", tile=4)
except ImportError:
    stepper = "The stepper is part of the course's site: chapter 2, The online softmax."
stepper

# %% [markdown]
# `stepper.tile = 1` in a cell of your own changes the picture; `stepper.trace` reads its table back.

# %% [markdown]
# ## Part 1: one step
#
# Write `step(state, tile)`. The state is what one query remembers of all the keys that it has seen; a tile is the next few
# of them.
#
# ```text
# state  m   float      largest score so far; -inf before the first tile
#        l   float      sum of exp(score - m)
#        o   d          sum of exp(score - m) * value, not divided by l
# tile   s   n          scores, already scaled; -inf where a key is masked
#        v   n x d      values
# return     (m, l, o)  the new state; the given one stays as it is, its o as well
# ```
#
# $$
# m' = \max\bigl(m, \max_j s_j\bigr), \qquad
# l' = e^{m - m'}\, l + \sum_j e^{s_j - m'}, \qquad
# o' = e^{m - m'}\, o + \sum_j e^{s_j - m'} v_j
# $$
#
# A common mistake: to replace `m` first and compute $e^{m - m'}$ afterwards. Then it is always 1.
#
# <details><summary>A nudge</summary>
# Everything in l and o was measured from the old maximum. What has to be done to it before numbers measured from the new one can be added?
# </details>
# <details><summary>The idea</summary>
# One factor, exp(old maximum - new maximum), carries both l and o over. It is at most 1, and exactly 1 when the maximum stays.
# </details>
# <details><summary>The outline</summary>
# Five lines: the new maximum; the correction from the two maxima; the tile's weights from its scores and the new maximum; the new l; the new o, with a vector-matrix product for the values.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-step", "locked": false, "schema_version": 3, "solution": true, "task": false}
def step(state, tile):
    """The state (m, l, o) after one more tile (s, v)."""
    m, l, o = state
    s, v = tile
    ### BEGIN SOLUTION
    m_new = max(m, s.max())
    shift = m_new if m_new > -np.inf else 0.0
    alpha = np.exp(m - shift)
    p = np.exp(s - shift)
    return m_new, alpha * l + p.sum(), alpha * o + p @ v
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-03-step", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("03.step", step)

# %% [markdown]
# ### When scores are masked
#
# A masked key has the score `-inf`, so its weight $e^{-\infty}$ is 0 and nothing else need be done. Except once: a tile
# whose scores are *all* `-inf`, before any other was seen. Then `m` stays `-inf`, and the formula subtracts `-inf` from
# `-inf`. Make your `step` give back the empty state `(-inf, 0, 0)` there; then run the check above again, and the one below.
# NumPy warns of an invalid value where it makes NaN: such a warning names the line to look at.
#
# A common mistake: to mask with a large finite number instead. It keeps NaN away, but a row whose keys are all masked then gets
# the average of their values instead of nothing.
#
# <details><summary>A nudge</summary>
# Print m - m' and s - m' for a tile of -inf in the empty state. Which of them is NaN?
# </details>
# <details><summary>The idea</summary>
# Only the subtraction is the trouble. Any finite number may be subtracted instead of m' in that case, since exp(-inf - finite) is 0, which is right.
# </details>
# <details><summary>The outline</summary>
# Beside the new maximum keep a second number, the shift: it is the new maximum, or 0 when that is -inf. Subtract the shift in both exponentials; return the maximum.
# </details>

# %% nbgrader={"grade": true, "grade_id": "check-03-step-masked", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("03.step.masked", step)

# %% [markdown]
# ## Part 2: one query
#
# Write `flash_one_query(q, k, v, tile)`: start from the empty state, take the keys tile by tile, and divide once at the end.
#
# ```text
# q        d         one query
# k        n x d     keys
# v        n x dv    values; dv may differ from d
# tile     int       keys in a tile; n need not be a multiple of it
# return   dv        softmax(q k^T / sqrt(d)) v
# ```
#
# $$
# o = \frac{1}{l_T}\, o_T, \qquad (m_t, l_t, o_t) = \mathrm{step}\bigl((m_{t-1}, l_{t-1}, o_{t-1}),\ \text{tile } t\bigr)
# $$
#
# A common mistake: a loop that ends after the last *whole* tile, so that the keys behind it are never seen.
#
# <details><summary>A nudge</summary>
# What are m, l and o when no key has been seen? Which shape has o?
# </details>
# <details><summary>The idea</summary>
# The scores of a tile are a product of a slice of k with q, scaled. A slice that reaches past the end of an array is cut short by NumPy, which is just right here.
# </details>
# <details><summary>The outline</summary>
# The empty state with dv zeros; a loop over the first index of each tile; in it the scores of the slice and one call of step; after it o / l.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-one-query", "locked": false, "schema_version": 3, "solution": true, "task": false}
def flash_one_query(q, k, v, tile):
    """Attention of one query (d,) over all keys (n, d) and values (n, dv), a tile at a time."""
    ### BEGIN SOLUTION
    state = (-np.inf, 0.0, np.zeros(v.shape[1]))
    for start in range(0, len(k), tile):
        s = k[start : start + tile] @ q / np.sqrt(len(q))
        state = step(state, (s, v[start : start + tile]))
    _, l, o = state
    return o / l
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-03-one-query", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("03.one_query", flash_one_query)

# %% [markdown]
# ## Tiles against tiles
#
# From part 3 on you take many queries at once. Here are the tiles of Q against those of K and V, in both orders of the two
# loops: what is in fast memory at each step, what moves, and what has to be written back. Yours is the order with the
# queries outside.

# %%
try:
    from widgets import Tiles

    tiles = Tiles()
except ImportError:
    tiles = "The tiles are part of the course's site: chapter 3, FlashAttention forward."
tiles

# %% [markdown]
# ## Part 3: tiles of queries
#
# One query after another reads all of K and V again for each. Write `flash_attention(q, k, v, tile_q, tile_k)`: it takes
# `tile_q` queries at once against each tile of keys. There is one state for each row, so `m` and `l` become vectors and `o`
# a matrix; `step` itself is for a single query, so write its five lines once more, for rows.
#
# ```text
# q               n_q x d        queries
# k, v            n_k x d, dv    keys and values
# tile_q, tile_k  int            queries and keys in a tile; neither length need be a multiple
# inside          m, l           tile_q         one for each row
#                 s, p           tile_q x tile_k
#                 o              tile_q x dv
# return          (o, lse)       n_q x dv, and n_q, both float64: lse = m + log(l), natural logarithm
# ```
#
# A common mistake: a maximum over the whole tile where each row has its own, or a correction of shape `(tile_q,)` that
# NumPy spreads along the wrong axis of `o`. Nothing here is masked, so the guard can stay out.
#
# <details><summary>A nudge</summary>
# Write down the shape of every name in step, then put tile_q in front of each.
# </details>
# <details><summary>The idea</summary>
# Two loops. The outer one takes a tile of queries and starts their states; the inner one walks over all keys; after it, this tile of o and lse is finished and is written to its rows of the result.
# </details>
# <details><summary>The outline</summary>
# Allocate o and lse. For each tile of queries: m of -inf, l of 0, an accumulator of zeros. For each tile of keys: scores by a matrix product, maximum along the last axis, the correction, the weights (m' gets a new last axis), l, the accumulator (the correction gets one too). Then divide and take the logarithm.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-tiles", "locked": false, "schema_version": 3, "solution": true, "task": false}
def flash_attention(q, k, v, tile_q, tile_k):
    """Attention of queries (n_q, d) over keys (n_k, d) and values (n_k, dv), tile by tile: (o, lse)."""
    ### BEGIN SOLUTION
    output = np.empty((len(q), v.shape[1]))
    lse = np.empty(len(q))
    for first in range(0, len(q), tile_q):
        rows = q[first : first + tile_q]
        m = np.full(len(rows), -np.inf)
        l = np.zeros(len(rows))
        o = np.zeros((len(rows), v.shape[1]))
        for start in range(0, len(k), tile_k):
            s = rows @ k[start : start + tile_k].T / np.sqrt(q.shape[1])
            m_new = np.maximum(m, s.max(axis=1))
            alpha = np.exp(m - m_new)
            p = np.exp(s - m_new[:, None])
            l = alpha * l + p.sum(axis=1)
            o = alpha[:, None] * o + p @ v[start : start + tile_k]
            m = m_new
        output[first : first + tile_q] = o / l[:, None]
        lse[first : first + tile_q] = m + np.log(l)
    return output, lse
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-03-tiles", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false}
check("03.tiles", flash_attention)

# %% [markdown]
# ### What it holds while it runs
#
# The result is the same as the plain formula's. What differs is what exists at once. The next check calls your function at
# N = 512, 2048 and 8192 and measures the most that it held. All scores at once would be 2, 32 and 512 MiB of float64, and the
# plain formula holds several arrays of that size; the limit grows with N, not with N squared. The check shows nothing until it
# is done: seconds when your loops go over tiles, minutes when one of them goes over single queries or keys.
#
# A common mistake: to collect the tiles of scores or weights in a list and join them at the end.
#
# <details><summary>A nudge</summary>
# Which of your arrays has both a length in queries and a length in keys? How many of those are alive at once?
# </details>

# %% nbgrader={"grade": true, "grade_id": "check-03-memory", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("03.memory", flash_attention)

# %% [markdown]
# ### Your own measurement
#
# Not graded. Change the sizes and the tile, and watch what moves the curve. The cell counts what NumPy allocates during the
# call, inputs not included. At small N the tiles weigh most, so your curve starts flat. It says nothing about speed: in NumPy
# the tiled form is no faster, since nothing here is kept in a GPU's fast memory.

# %%
import tracemalloc

MIB = 2**20


def peak_mib(function, *arguments):
    tracemalloc.start()
    try:
        result = function(*arguments)
        return result, tracemalloc.get_traced_memory()[1] / MIB
    finally:
        tracemalloc.stop()


def measure(sizes=(512, 1024, 2048, 4096, 8192), tile=128, d=16):
    rng = np.random.default_rng(0)
    peaks = []
    for n in sizes:
        q, k, v = rng.standard_normal((3, n, d))
        result, peak = peak_mib(flash_attention, q, k, v, tile, tile)
        if result is None:
            print("flash_attention returns nothing yet: write part 3 first.")
            return
        peaks.append(peak)
    slope = np.log(peaks[-1] / peaks[0]) / np.log(sizes[-1] / sizes[0])
    for n, peak in zip(sizes, peaks, strict=True):
        print(f"N = {n:4}: {peak:7.2f} MiB held at the peak; one N x N array: {8 * n * n / MIB:6.1f} MiB")
    print(
        f"From the first to the last N, yours grows about as N to the power {slope:.2f}; all scores as N squared."
    )
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        return
    axes = plt.figure(figsize=(6, 3.6)).add_subplot()
    axes.loglog(sizes, [8 * n * n / MIB for n in sizes], "--s", color="#868C96")
    axes.loglog(sizes, peaks, "-o", color="#D55E00")
    axes.text(0.03, 0.92, "■ dashed: one N × N array, computed", color="#5B626C", transform=axes.transAxes)
    axes.text(0.03, 0.84, "● solid: flash_attention, measured", color="#A84A00", transform=axes.transAxes)
    axes.set_xticks(sizes, labels=sizes)
    axes.minorticks_off()
    axes.set(xlabel="N, queries and keys (log)", ylabel="MiB held at the peak (log)")
    plt.show()


measure()

# %% [markdown]
# ## Part 4: the kernel
#
# Write `flash_forward_kernel`. A program of the grid has one head and one tile of `BLOCK_M` queries; it walks over the keys
# in tiles of `BLOCK_N` and keeps its `m`, `l` and `o` in registers. It is the inner loop of part 3: the outer loop has
# become the grid. The signature is fixed, and the grader launches the kernel itself.
#
# ```text
# q_ptr          heads x q_len x HEAD_DIM       contiguous; batch and heads are one axis
# k_ptr, v_ptr   heads x kv_len x HEAD_DIM      contiguous, of the same type as q
# o_ptr          heads x q_len x HEAD_DIM       of the type of q
# lse_ptr        heads x q_len                  float32, natural logarithm
# scale          float                          1 / sqrt(HEAD_DIM), computed by the caller
# grid           cdiv(q_len, BLOCK_M), heads    axis 0, axis 1
# HEAD_DIM, BLOCK_M, BLOCK_N                    powers of two, at least 16
#
# in a program   rows        BLOCK_M            positions of its queries
#                dims        HEAD_DIM           0, 1, ...
#                s, p        BLOCK_M x BLOCK_N
#                m, l        BLOCK_M            float32
#                o           BLOCK_M x HEAD_DIM float32
# ```
#
# Element `(i, c)` of this head's q is at `q_ptr + i * HEAD_DIM + c`: the given lines have already moved each pointer to
# the head. A tile of addresses is made by adding a column of rows to a row of columns:
# `rows[:, None] * HEAD_DIM + dims[None, :]`.
#
# | you need | in Triton |
# |---|---|
# | a tile of memory, 0 where the mask is false | `tl.load(pointers, mask=..., other=0.0)` |
# | to write one | `tl.store(pointers, values, mask=...)` |
# | a constant tile | `tl.full((BLOCK_M,), float("-inf"), tl.float32)`, `tl.zeros(...)` |
# | a matrix product, and a transpose | `tl.dot(a, b, input_precision="ieee")`, `tl.trans(a)` |
# | along a row | `tl.max(s, 1)`, `tl.sum(p, 1)` |
# | by element | `tl.maximum`, `tl.exp`, `tl.log`, `tl.where(condition, a, b)` |
# | a loop over tiles | `for start in range(0, kv_len, BLOCK_N):` |
#
# `other` matters: without it a GPU may give anything where the mask is false, NaN included. The interpreter gives 0, so no check
# sees it there.
#
# `tl.dot` wants both sides of one type: `p.to(v.dtype)`. Without `input_precision="ieee"` a GPU rounds float32 to 10 bits
# of mantissa in the product, and the check sees an error near 0.001.
#
# Write it in four rounds. The four checks below look at one round each; come back to this cell between them.
#
# 1. **Whole tiles.** All lengths are multiples of the blocks. Load q, then the loop, then store o and lse.
# 2. **Tails.** A last tile reaches past `q_len` or `kv_len`. Mask every load and store; a key that is not there needs
#    weight 0, and a score of 0 does not give it.
# 3. **Causal.** With `CAUSAL`, query `i` sees key `j` when `j <= i + kv_len - q_len`: the last query sees the last key.
# 4. **NaN.** A row that sees no key at all gives o = 0 and lse = -inf. And NaN that lies in memory behind this head must
#    not come in: 0 * NaN is NaN.
#
# A common mistake in round 1: `o` in the type of q. The accumulator is float32, whatever the inputs are: float16 keeps 11 bits,
# and beside a large sum what a small weight adds is rounded away.
#
# <details><summary>Whole tiles: a nudge</summary>
# Put your part 3 beside it. Each line of its inner loop becomes one line here, with the same shapes.
# </details>
# <details><summary>Whole tiles: the outline</summary>
# Before the loop: q's tile, m of -inf, l and o of zeros. In it: the columns of this tile (start plus an arange), k and v by their addresses, s as a product with the transpose of k times scale, and part 3's five lines. After it: o divided by l to o_ptr, m + log(l) to lse_ptr + rows.
# </details>
# <details><summary>Tails: the idea</summary>
# columns &lt; kv_len is the mask of K and V, and the condition under which a score survives: elsewhere it becomes -inf. rows &lt; q_len is the mask of q and of both stores.
# </details>
# <details><summary>Causal: the idea</summary>
# One more condition, joined to the first with &amp;: a row of columns compared with a column of rows. CAUSAL is known when the kernel is compiled, so a plain if will do. Tiles that no row sees may be visited here; chapter 4 leaves them out.
# </details>
# <details><summary>NaN: the idea</summary>
# The guard of part 1, by element: tl.where gives a shift that is never -inf. And after the loop, l is 0 in a row that saw nothing: divide by something else there.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-kernel", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def flash_forward_kernel(
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
    CAUSAL: tl.constexpr,
):
    """One head, one tile of BLOCK_M queries, all keys in tiles of BLOCK_N."""
    head = tl.program_id(1).to(tl.int64)  # an offset may pass 2^31
    q_ptr += head * q_len * HEAD_DIM
    o_ptr += head * q_len * HEAD_DIM
    lse_ptr += head * q_len
    k_ptr += head * kv_len * HEAD_DIM
    v_ptr += head * kv_len * HEAD_DIM
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    ### BEGIN SOLUTION
    tile = rows[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + tile, mask=rows[:, None] < q_len, other=0.0)
    m = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    o = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for start in range(0, kv_len, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        keys = columns[:, None] * HEAD_DIM + dims[None, :]
        k = tl.load(k_ptr + keys, mask=columns[:, None] < kv_len, other=0.0)
        v = tl.load(v_ptr + keys, mask=columns[:, None] < kv_len, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        visible = columns[None, :] < kv_len
        if CAUSAL:
            visible = visible & (columns[None, :] <= rows[:, None] + kv_len - q_len)
        s = tl.where(visible, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
        alpha = tl.exp(m - shift)
        p = tl.exp(s - shift[:, None])
        l = alpha * l + tl.sum(p, 1)
        o = alpha[:, None] * o + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = m_new
    empty = l == 0.0
    total = tl.where(empty, 1.0, l)
    tl.store(o_ptr + tile, o / total[:, None], mask=rows[:, None] < q_len)
    tl.store(lse_ptr + rows, tl.where(empty, float("-inf"), m + tl.log(total)), mask=rows < q_len)
    ### END SOLUTION


# %% [markdown]
# **When it does not work**, go up this ladder; each rung is smaller than the check.
#
# 1. `try_kernel()`: one head, 16 queries, 32 keys, one tile of each. The loop runs once, so the correction plays no part. Wrong
#    here? Look at the addresses, the transpose, the scale and the division.
# 2. `try_kernel(kv_len=64)`: the loop runs twice. Wrong only now? Look at the correction.
# 3. `try_kernel(heads=2)`. Only head 1 wrong? Look at the pointers.
# 4. `try_kernel(kv_len=33)`: one key in the last tile, and NaN in memory behind it. NaN only now? A load of K or V has no mask.
#    Wrong only now, and not NaN? A score of 0 in place of -inf.
# 5. `try_kernel(q_len=17)`: one query in the last tile. A sentence on what lies behind o or lse? A store has no mask.
# 6. In the interpreter a kernel is Python: `print(s)` in the loop shows the tile. On a GPU use `tl.device_print`. An error about
#    `to_tensor` comes of a NumPy function that is given a tile: in a kernel it is `tl.exp`, not `np.exp`.
# 7. All of o is NaN? Either nothing was stored, or the first NaN is in `p`, `alpha` or `v`: print those three.
# 8. Right in the interpreter, and on a GPU wrong by far more than float32 rounds: `input_precision`. NaN on a GPU alone: a load
#    with a mask and without `other`.
# 9. In the causal mask, put each comparison in parentheses: `&` binds tighter than `<=`.


# %%
def try_kernel(heads=1, q_len=16, kv_len=32, head_dim=64, blocks=(16, 32), causal=False):
    """Launch your kernel on small random inputs, and print what it gives beside the plain formula."""
    torch.manual_seed(0)
    device = "cuda" if ON_GPU else "cpu"
    # Room behind every array, so that a kernel that goes too far reads and writes there and harms nothing else.
    memory = torch.full((5, heads * max(q_len, kv_len) * head_dim + 2**20), float("nan"), device=device)
    q, k, v, o = (
        row[: heads * n * head_dim].view(heads, n, head_dim)
        for row, n in zip(memory[:4], (q_len, kv_len, kv_len, q_len), strict=True)
    )
    lse = memory[4, : heads * q_len].view(heads, q_len)
    behind = {"o": memory[3, o.numel() :], "lse": memory[4, lse.numel() :]}
    for x in (q, k, v):
        x.normal_()
    for rest in behind.values():
        rest.fill_(-1.0)
    scale = head_dim**-0.5
    sizes = {"HEAD_DIM": head_dim, "BLOCK_M": blocks[0], "BLOCK_N": blocks[1], "CAUSAL": causal}
    flash_forward_kernel[(triton.cdiv(q_len, blocks[0]), heads)](
        q, k, v, o, lse, q_len, kv_len, scale, **sizes
    )
    for name, rest in behind.items():
        if (rest != -1.0).any():
            print(f"The kernel wrote past the end of {name}: look at the mask of its store.")
    s = scale * (q @ k.mT).double()
    if causal:
        i, j = torch.arange(q_len, device=device)[:, None], torch.arange(kv_len, device=device)
        s = s.masked_fill(j > i + kv_len - q_len, float("-inf"))
    want = s.softmax(-1).nan_to_num() @ v.double()
    right_lse = torch.isclose(lse.double(), s.logsumexp(-1), rtol=0, atol=1e-4)
    for head in range(heads):
        error = (o[head] - want[head]).abs().max().item()
        wrong = torch.nonzero(~right_lse[head]).flatten().tolist()
        print(f"head {head}: largest error of o {error:.2g}, rows with a wrong lse: {wrong}")
    print("o[0, 0] begins", o[0, 0, :4].tolist(), "and should begin", want[0, 0, :4].tolist())


# try_kernel()              # rung 1

# %% [markdown]
# ### Round 1: whole tiles

# %% nbgrader={"grade": true, "grade_id": "check-03-kernel-full", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
check("03.kernel.full", flash_forward_kernel)

# %% [markdown]
# ### Round 2: tails

# %% nbgrader={"grade": true, "grade_id": "check-03-kernel-tails", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("03.kernel.tails", flash_forward_kernel)

# %% [markdown]
# ### Round 3: causal

# %% nbgrader={"grade": true, "grade_id": "check-03-kernel-causal", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("03.kernel.causal", flash_forward_kernel)

# %% [markdown]
# ### Round 4: NaN

# %% nbgrader={"grade": true, "grade_id": "check-03-kernel-nan", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("03.kernel.nan", flash_forward_kernel)

# %% [markdown]
# ## Part 5: the host
#
# Write `flash_attention_triton(q, k, v, causal=False)`: it allocates the outputs, chooses the blocks, launches your kernel
# once, and returns.
#
# ```text
# q        batch x heads x q_len x head_dim     contiguous torch tensors, float32 or float16
# k, v     batch x heads x kv_len x head_dim
# return   (o, lse)     o like q; lse batch x heads x q_len, float32, on q's device
# ```
#
# A launch is `flash_forward_kernel[grid](...)`, with the compile-time parameters as keywords: `HEAD_DIM=...`. `scale` is
# 1 / sqrt(head_dim), as in part 4's table. Blocks of 64 and 64 do on any GPU for the head sizes here. Lengths need not be multiples
# of them: the check has a q_len that is none, so let `03.kernel.tails` pass first.
#
# A common mistake: a grid with `heads` programs on its second axis. The kernel knows one axis of heads, so there are
# `batch * heads` of them.
#
# <details><summary>A nudge</summary>
# What does a contiguous (batch, heads, len, head_dim) tensor look like in memory to someone who reads it as (batch * heads, len, head_dim)?
# </details>
# <details><summary>The idea</summary>
# Nothing has to be copied or reshaped: the kernel gets the tensors as they are. torch.empty_like makes o; lse is a new tensor of type float32.
# </details>
# <details><summary>The outline</summary>
# Read the four sizes from q.shape and kv_len from k.shape; allocate; grid = (triton.cdiv(q_len, BLOCK_M), batch * heads); launch with the arguments in the order of the signature; return both.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-host", "locked": false, "schema_version": 3, "solution": true, "task": false}
def flash_attention_triton(q, k, v, causal=False):
    """Attention of q (batch, heads, q_len, head_dim) over k, v (batch, heads, kv_len, head_dim): (o, lse)."""
    ### BEGIN SOLUTION
    batch, heads, q_len, head_dim = q.shape
    o = torch.empty_like(q)
    lse = torch.empty((batch, heads, q_len), dtype=torch.float32, device=q.device)
    block = 64
    grid = (triton.cdiv(q_len, block), batch * heads)
    flash_forward_kernel[grid](
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
    return o, lse
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-03-host", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("03.host", flash_attention_triton)

# %% [markdown]
# ### Its memory
#
# On a GPU this check calls your function at N = 32768, where all scores at once would be 2 GiB. Without one it waits, and is
# made where the grader has one: that costs you nothing.

# %% nbgrader={"grade": true, "grade_id": "check-03-host-memory", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("03.host.memory", flash_attention_triton)

# %% [markdown]
# ### Your own measurement, on a GPU
#
# Not graded. Your kernel beside PyTorch's own (`scaled_dot_product_attention`) and the plain formula. The median of 20 calls
# after one that compiles; one size, one head size, no causal mask: it does not say which is faster elsewhere.


# %%
def race(n=4096, heads=8, head_dim=64):
    if not ON_GPU:
        print(
            "There is no GPU here, so there is nothing to time: an interpreter's seconds say nothing about a kernel."
        )
        return
    q, k, v = torch.randn(3, 1, heads, n, head_dim, device="cuda", dtype=torch.float16)
    contestants = {
        "yours": lambda: flash_attention_triton(q, k, v),
        "PyTorch's": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
        "plain formula": lambda: torch.softmax(q @ k.mT * head_dim**-0.5, -1) @ v,
    }
    print(f"{torch.cuda.get_device_name()}, float16, {heads} heads, N = {n}, head_dim {head_dim}")
    for name, call in contestants.items():
        call()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before, times = torch.cuda.memory_allocated(), []
        for _ in range(20):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        held = (torch.cuda.max_memory_allocated() - before) / MIB
        print(f"{name:>14}: {sorted(times)[10]:8.3f} ms, {held:8.1f} MiB at the peak")


race()

# %% [markdown]
# ## What you can now do
#
# You can carry a softmax over tiles in three numbers for each row, say what rescales them and when, write it as a kernel
# that has short last tiles, a causal mask and rows without keys, and show that its memory grows with N. The next chapters
# keep the state and the step: only which keys come next changes.

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S, or Cmd+S), then run this cell. It reads the saved file as the grader will, says what is missing,
# and packs it; upload the file that it names. It runs none of your code, and you may hand in as often as you like: the newest
# counts. Where the upload does not know who you are, write `handin(student="your id")`.

# %%
from autograder import handin

handin()
