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
# # Exercise 1: The memory hierarchy
#
# *Why does attention wait for memory, although it is mostly arithmetic?*
#
# You count what attention moves and what it computes, and turn both into the least time that a card needs. Then you write
# attention as the textbook has it, measure what it holds, and write three Triton kernels that do almost no arithmetic: what they
# cost is the bytes that they move.
#
# | part | you write | checks | points |
# |---|---|---|---|
# | 1 | `standard_traffic`, `flash_traffic`, `attention_flop`: count | `01.traffic.standard`, `.flash`, `01.flop` | 3 + 2 + 1 |
# | 2 | `roofline`, `chain_time`: from counts to time | `01.roofline`, `01.chain` | 3 + 2 |
# | 3 | `naive_attention`, `standard_peak`: the textbook form, and what it holds | `01.naive`, `01.peak` | 3 + 3 |
# | 4 | `scale_kernel`: the first kernel, `out = a * x` | `01.scale`, `01.scale.speed` | 4 + 2 |
# | 5 | `softmax_passes_kernel`, `softmax_fused_kernel`: three reads, and one | `01.softmax.passes`, `.fused`, `.speed` | 4 + 3 + 2 |
#
# Every check has points of its own. The two checks of speed need a GPU, and count only once their kernel is right; nothing else
# depends on another part, unless your own code calls a function of one. A check runs public cases here and shows each of them; the
# grader repeats it with other sizes and other numbers of the same kinds. You may add cells wherever you like, and they are
# kept. The cells with a `check` and the set-up cell are replaced by the originals when you are graded.

# %% [markdown]
# ## What you need
#
# The set-up cell below prepares each of these places. Run it first, and again after every restart of the kernel.
#
# - **JupyterLab or VS Code** in the course's folder: `make lab` once, then choose the kernel of `.venv`.
# - **Colab**: open this notebook there and run the cell; it installs the course from
#   <{{repository}}>. For parts 4 and 5 a GPU runtime is faster, and the checks of speed need one.
# - **No GPU**: Triton runs your kernel in its interpreter, in Python, on the CPU. It is slow and gives the same results. The
#   checks of speed wait, and are made where the grader has a GPU.
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
# ## The two forms, once more
#
# Step through what crosses between the chip and HBM (space or the arrow keys, once the picture has the focus). What you count
# in part 1 is in its table, for a shape of your choice.

# %%
try:
    from widgets import Roofline

    simulator = Roofline(n=2048, heads=16, head_dim=64)
except ImportError:
    simulator = "The simulator is part of the course's site: chapter 1, The memory hierarchy."
simulator

# %% [markdown]
# `simulator.n = 512` in a cell of your own changes the picture; `simulator.card = "A100"` the card.

# %% [markdown]
# ## Part 1: count
#
# In the **standard form** attention is three kernels. Each reads its inputs from HBM and writes its result there:
#
# | kernel | reads | writes |
# |---|---|---|
# | `S = Q K^T / sqrt(d)` | Q, K | S |
# | `P = softmax(S)` | S | P |
# | `O = P V` | P, V | O |
#
# Write `standard_traffic(q_len, kv_len, heads, d, number)`: the bytes that all heads together read from HBM, and the bytes that they
# write. The numbers of queries and of keys may differ: a model that generates text has one query and many keys.
#
# ```text
# q_len      int     queries: rows of Q and O, of S and P
# kv_len     int     keys: rows of K and V, columns of S and P
# heads      int     heads; each has its own Q, K, V, O, S and P
# d          int     numbers in a row of Q, K, V and O
# number     int     bytes of a number: 2 for fp16, 4 for float32
# return     (read, written)     bytes, over all three kernels and all heads
# ```
#
# A common mistake: to count a matrix where it is written and forget that the next kernel reads it.
#
# <details><summary>A nudge</summary>
# Six arrays take part. How many numbers does each have, for one head?
# </details>
# <details><summary>The idea</summary>
# Go down the table. Add up the sizes in its second column for what is read, those in its third for what is written.
# </details>
# <details><summary>The outline</summary>
# Three names: rows times d for Q (and O), for K (and V), and queries times keys for S (and P). Read: Q, K, S, P, V. Written: S, P, O. Both times heads times number.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-standard-traffic", "locked": false, "schema_version": 3, "solution": true, "task": false}
def standard_traffic(q_len, kv_len, heads, d, number):
    """Bytes (read, written) in HBM by attention in three kernels."""
    ### BEGIN SOLUTION
    queries, keys, scores = q_len * d, kv_len * d, q_len * kv_len
    read = queries + keys + scores + scores + keys
    written = scores + scores + queries
    return heads * number * read, heads * number * written
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-01-traffic-standard", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("01.traffic.standard", standard_traffic)

# %% [markdown]
# ### Without the matrix
#
# Now one kernel does all three steps, and neither S nor P ever leaves the chip. Write `flash_traffic` with the same arguments and
# the same kind of result. Every array that is left goes through HBM once: what a tile of queries reads again is taken to come from L2.
#
# <details><summary>A nudge</summary>
# Which of the six arrays does this kernel get from outside, and which does anyone need afterwards?
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-flash-traffic", "locked": false, "schema_version": 3, "solution": true, "task": false}
def flash_traffic(q_len, kv_len, heads, d, number):
    """Bytes (read, written) in HBM by attention in one kernel."""
    ### BEGIN SOLUTION
    queries, keys = q_len * d, kv_len * d
    read, written = queries + 2 * keys, queries
    return heads * number * read, heads * number * written
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-01-traffic-flash", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("01.traffic.flash", flash_traffic)

# %% [markdown]
# ### The arithmetic
#
# Write `attention_flop(q_len, kv_len, heads, d)`: the floating-point operations of the two matrix products, where a multiply and
# an add count as two: a sum of d products is d multiplies and d adds. They are the same in both forms. The softmax is left out, as is usual; so is the scaling.
#
# A common mistake: to count one product, or a multiply and an add as one.
#
# <details><summary>A nudge</summary>
# One score is a sum of d products. How many operations is that, with the add counted beside each multiply? And one number of O, a sum over what?
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-flop", "locked": false, "schema_version": 3, "solution": true, "task": false}
def attention_flop(q_len, kv_len, heads, d):
    """Floating-point operations of both matrix products of attention."""
    ### BEGIN SOLUTION
    return 2 * (2 * heads * q_len * kv_len * d)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-01-flop", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("01.flop", attention_flop)

# %% [markdown]
# ## Part 2: from counts to time
#
# Write `roofline(flop, moved, rate, bandwidth)` for one kernel: its arithmetic intensity, and the least time that it can take. The
# card computes and moves at the same time, so what takes longer hides the other.
#
# ```text
# flop        operations; may be 0
# moved       bytes through HBM, read and written together; more than 0
# rate        operations a second that the card can do
# bandwidth   bytes a second that its memory can move
# return      (intensity, seconds)    operations for each byte; the bound on the time
# ```
#
# $$
# I = \frac{\text{flop}}{\text{moved}}, \qquad
# t \ge \max\Bigl(\frac{\text{moved}}{\text{bandwidth}},\ \frac{\text{flop}}{\text{rate}}\Bigr)
# $$
#
# A common mistake: to add the two times. That is what a card would need that does nothing while it waits.
#
# <details><summary>A nudge</summary>
# A kernel that copies has no operations at all. What should your two numbers be then?
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-roofline", "locked": false, "schema_version": 3, "solution": true, "task": false}
def roofline(flop, moved, rate, bandwidth):
    """(operations for each byte, least seconds) of one kernel."""
    ### BEGIN SOLUTION
    return flop / moved, max(moved / bandwidth, flop / rate)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-01-roofline", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("01.roofline", roofline)

# %% [markdown]
# ### One kernel after another
#
# Write `chain_time(kernels, rate, bandwidth)`: the least time of kernels that run one after another. A kernel starts when the one before
# it has ended, so the arithmetic of one can't hide the traffic of another.
#
# ```text
# kernels    tuple of (flop, moved), one for each kernel, in order
# return     seconds
# ```
#
# A common mistake: to add up all operations and all bytes first. That is the bound of one kernel which does everything, and the difference
# between the two is a part of what flash attention saves.
#
# <details><summary>A nudge</summary>
# A kernel of 1 ms of traffic and no arithmetic, then one of 1 ms of arithmetic and no traffic: how long do both take?
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-chain", "locked": false, "schema_version": 3, "solution": true, "task": false}
def chain_time(kernels, rate, bandwidth):
    """The least seconds of kernels (flop, moved) in a row."""
    ### BEGIN SOLUTION
    bounds = [roofline(*kernel, rate, bandwidth)[1] for kernel in kernels]
    return sum(bounds)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-01-chain", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("01.chain", chain_time)

# %% [markdown]
# ### What your functions say
#
# Not graded. Your counts and bounds on an H100, with its published rates. Look down the two columns of operations for each byte: one of them
# grows with the context, the other one settles. At which number does it settle, and which of the arguments is that made of? (A matrix of
# a short context would stay in the L2 cache, which these counts leave out.) The last line is one query, as when a model generates text: there both forms wait for memory, and
# flash saves next to nothing. Change the shape, or the card to "A100" or "H200". The bound of the standard form is that of its three kernels in
# a row; nothing here is a measurement.


# %%
def sweep(lengths=(512, 2048, 8192, 32768), heads=32, d=128, number=2, card="H100"):
    try:
        from widgets.cards import CARDS
    except ImportError:
        print("The rates of the cards are a part of the course's package, which is not installed here.")
        return
    rate, bandwidth = CARDS[card].matrix_rate, CARDS[card].hbm_rate
    print(
        f"{CARDS[card].name}, {heads} heads of {d}: it can do {rate / bandwidth:.0f} operations for each byte"
    )
    print("queries    keys |   standard: MiB  FLOP/byte        ms |      flash: MiB  FLOP/byte        ms")
    for q_len, kv_len in [*((n, n) for n in lengths), (1, lengths[-1])]:
        shape = (q_len, kv_len, heads, d)
        pairs = standard_traffic(*shape, number), flash_traffic(*shape, number), roofline(1, 1, 1, 1)
        flop = attention_flop(*shape)
        if (
            flop is None
            or any(np.shape(pair) != (2,) for pair in pairs)
            or chain_time(((1, 1),), 1, 1) is None
        ):
            print("Write parts 1 and 2 first: their checks say what is missing.")
            return
        standard, flash = sum(pairs[0]), sum(pairs[1])
        matrix = heads * number * q_len * kv_len
        # The softmax moves two matrices, and each of the two products half of the rest.
        ends = (standard - 2 * matrix) / 2
        kernels = ((flop / 2, ends), (0, 2 * matrix), (flop / 2, ends))
        columns = [f"{q_len:7} {kv_len:7} "]
        for moved, seconds in (
            (standard, chain_time(kernels, rate, bandwidth)),
            (flash, roofline(flop, flash, rate, bandwidth)[1]),
        ):
            intensity = roofline(flop, moved, rate, bandwidth)[0]
            columns.append(f" {moved / 2**20:14,.0f} {intensity:10,.1f} {1e3 * seconds:9.4f} ")
        print("|".join(columns))


sweep()

# %% [markdown]
# ## Part 3: the textbook form
#
# Write `naive_attention(q, k, v)` in NumPy: all scores at once, a softmax over each row, the weighted sum. It is what every other form of
# attention in this course is compared with.
#
# ```text
# q        n_q x d       queries
# k        n_k x d       keys
# v        n_k x dv      values; dv may differ from d
# return   n_q x dv      softmax(q k^T / sqrt(d)) v, each row with a softmax of its own
# ```
#
# Subtract from each row of scores its largest one before the exponential: the softmax stays what it is, and a score of 1000 does no harm
# (chapter 2 says why).
#
# A common mistake: the maximum or the sum of the whole matrix, or of its columns. A softmax is over the keys of one query.
#
# <details><summary>A nudge</summary>
# The scores are n_q x n_k. Along which axis are the keys? What does keepdims=True do to a maximum along it?
# </details>
# <details><summary>The outline</summary>
# Four lines: the scaled scores by a matrix product; the exponentials of scores minus the maximum of their row; their sum along each row; the product with v, divided by that sum.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-naive", "locked": false, "schema_version": 3, "solution": true, "task": false}
def naive_attention(q, k, v):
    """Attention of q (n_q, d) over k (n_k, d) and v (n_k, dv): (n_q, dv)."""
    ### BEGIN SOLUTION
    s = q @ k.T / np.sqrt(q.shape[1])
    w = np.exp(s - s.max(axis=1, keepdims=True))
    p = w / w.sum(axis=1, keepdims=True)
    return p @ v
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-01-naive", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("01.naive", naive_attention)

# %% [markdown]
# ### What it holds
#
# Traffic is one cost, room is another. Write `standard_peak(q_len, kv_len, heads, d, number, at_once)`: the most bytes that the standard form
# holds in HBM at one time, if it works like this:
#
# - Q, K, V and O of **all** heads are there from beginning to end;
# - it takes `at_once` heads at a time, runs the three kernels for them, and goes on with the next group;
# - S of a group is made, then P beside it, then S is given back; after the product with V, P is given back.
#
# ```text
# q_len, kv_len, heads, d, number    as in part 1
# at_once                            heads that are worked on together; 1 <= at_once <= heads
# return                             bytes
# ```
#
# A common mistake: to count one matrix, since P "replaces" S. It does so only after it has been written in full.
#
# <details><summary>A nudge</summary>
# Write down what is there during each of the three kernels. Which of the three lists is the longest?
# </details>
# <details><summary>The idea</summary>
# Two kinds of arrays: those that are there for all heads, and those that are there for the heads of one group.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-peak", "locked": false, "schema_version": 3, "solution": true, "task": false}
def standard_peak(q_len, kv_len, heads, d, number, at_once):
    """The most bytes held at once, with S and P of `at_once` heads."""
    ### BEGIN SOLUTION
    always = heads * (2 * q_len * d + 2 * kv_len * d)
    matrices = at_once * 2 * q_len * kv_len
    return number * (always + matrices)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-01-peak", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("01.peak", standard_peak)

# %% [markdown]
# ### Your own measurement
#
# Not graded. What does *your* `naive_attention` hold? The cell counts what NumPy allocates during the call, inputs not included, and shows it in
# matrices of N x N. Two would be S and P. NumPy often needs a third, because each operation puts its result into a new array while its
# operands are still there. Try to get down to two, then to one (`s -= ...`, `np.exp(s, out=s)`, dividing the output in place of the
# matrix), and run the check and this cell again. Below one it does not go in this form: S exists. Go by the last line: the output and the
# sums of the rows are counted as well, and only beside a large matrix are they small. The count says nothing about speed.

# %%
import tracemalloc

MIB = 2**20


def measure(sizes=(256, 512, 1024, 2048), d=64):
    rng = np.random.default_rng(0)
    for n in sizes:
        q, k, v = rng.standard_normal((3, n, d))
        tracemalloc.start()
        try:
            result = naive_attention(q, k, v)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        if result is None:
            print("naive_attention returns nothing yet: write it first.")
            return
        matrix = 8 * n * n
        print(
            f"N = {n:4}: {peak / MIB:7.2f} MiB held at the peak = {peak / matrix:.2f} matrices of {matrix / MIB:6.2f} MiB"
        )


measure()

# %% [markdown]
# ## Part 4: the first kernel
#
# Write `scale_kernel`, which computes `out = a * x` for `n` numbers. A Triton kernel is written for *one* tile of `BLOCK` numbers; the GPU
# runs as many such programs as the **grid** says, here `cdiv(n, BLOCK)`, and each asks for its number. The signature is fixed, and the grader
# launches the kernel itself.
#
# ```text
# x_ptr     n numbers       contiguous, float32 or float16
# out_ptr   n numbers       of the type of x
# n         int             need not be a multiple of BLOCK
# a         float           the factor
# grid      cdiv(n, BLOCK)  axis 0, the one that tl.program_id(0) counts
# BLOCK     a power of two
# ```
#
# | you need | in Triton |
# |---|---|
# | the number of this program | `tl.program_id(0)` |
# | 0, 1, ... BLOCK - 1 | `tl.arange(0, BLOCK)` |
# | a tile of memory, 0 where the mask is false | `tl.load(pointers, mask=..., other=0.0)` |
# | to write one | `tl.store(pointers, values, mask=...)` |
#
# A pointer plus a tile of places is a tile of pointers, and one load fetches what they all point to; a pointer takes no index in brackets. The last tile reaches past `n`: what lies there belongs to
# somebody else. The mask, one truth value for each place, says which places exist.
#
# An offset may pass 2^31 in a long array: `tl.program_id(0).to(tl.int64)` makes room for it.
#
# A common mistake: a loop over the numbers of the tile. There is none: the tile is one value, and the GPU's threads share it out.
#
# <details><summary>A nudge</summary>
# Program 0 has the places 0 to BLOCK - 1. Which ones has program 1? Program 7?
# </details>
# <details><summary>The outline</summary>
# Three lines: this program's places, from its number, BLOCK and an arange; the load, with places &lt; n as its mask; the store of a times what was loaded, with the same mask.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-scale", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def scale_kernel(x_ptr, out_ptr, n, a, BLOCK: tl.constexpr):
    """One tile of BLOCK numbers of out = a * x."""
    ### BEGIN SOLUTION
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = places < n
    x = tl.load(x_ptr + places, mask=inside, other=0.0)
    tl.store(out_ptr + places, a * x, mask=inside)
    ### END SOLUTION


# %% [markdown]
# **When it does not work**, look at small cases. In the interpreter a kernel is Python: a `print(places)` in it shows the tile. On a GPU use
# `tl.device_print`.
#
# 1. 16 numbers, one tile. All of out is NaN? Then nothing was stored.
# 2. 32 numbers, two tiles. Only the second is wrong? Look at the places.
# 3. 20 numbers: the last tile is short. "Written past the end"? Look at the mask of the store: which places does it let through?


# %%
def try_scale(n=16, a=3.0, block=16):
    """Launch your kernel on 0, 1, 2, ... and print what it gives."""
    device = "cuda" if ON_GPU else "cpu"
    # Both arrays go on behind their n numbers, so that a store which goes too far is seen, and harms nothing else.
    x = torch.arange(2 * n + block, dtype=torch.float32, device=device)
    out = torch.full_like(x, float("nan"))
    scale_kernel[(triton.cdiv(n, block),)](x, out, n, a, BLOCK=block)
    print(out[:n].tolist())
    if not out[n:].isnan().all():
        print(f"Written past the end: out has {n} numbers, and then", out[n : n + block].tolist())


# try_scale()              # rung 1; then try_scale(n=32), try_scale(n=20)

# %% nbgrader={"grade": true, "grade_id": "check-01-scale", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
check("01.scale", scale_kernel)

# %% [markdown]
# ### At which share of the bandwidth
#
# The kernel does one multiplication for each number that it reads and writes: far left on the roofline. So the best that it can do is to be
# as fast as the card moves bytes. This check lets it run on arrays that no cache holds, and times it beside a copy of as many bytes that the
# card makes by itself. It passes at 60 % of the copy's rate. A kernel that moves every byte through HBM twice comes to 50 % at best. Without a GPU the
# check waits, and is made where the grader has one: that costs you nothing.

# %% nbgrader={"grade": true, "grade_id": "check-01-scale-speed", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("01.scale.speed", scale_kernel)

# %% [markdown]
# ## Part 5: a softmax in three reads, and in one
#
# Each row of a matrix gets a softmax. The plain way is three passes over the row, each of which reads it again:
#
# | pass | computes | reads |
# |---|---|---|
# | 1 | the maximum m | the row |
# | 2 | the sum of exp(x - m) | the row |
# | 3 | exp(x - m) / sum, and writes it | the row |
#
# Write `softmax_passes_kernel`: one program for each row, which takes the row in tiles of `BLOCK`, three times.
#
# ```text
# x_ptr     rows x n     contiguous, float32
# out_ptr   rows x n     float32
# n         int          numbers in a row; need not be a multiple of BLOCK
# grid      rows         axis 0
# BLOCK     a power of two
# ```
#
# The given lines have already moved each pointer to the program's row, so number `c` of the row is at `x_ptr + c`.
#
# | you need | in Triton |
# |---|---|
# | a loop over tiles | `for start in range(0, n, BLOCK):` |
# | the largest and the sum of a tile | `tl.max(x, 0)`, `tl.sum(x, 0)` |
# | of two numbers | `tl.maximum(a, b)` |
# | by element | `tl.exp(x)` |
# | minus infinity | `float("-inf")` |
#
# A common mistake: `other=0.0` for the places behind the row. A zero counts in the maximum, and in the sum as `exp(0 - m)`. Which number is
# never the largest, and has the exponential 0?
#
# <details><summary>A nudge</summary>
# Write the three passes in NumPy first, on one row, with a loop over tiles in each.
# </details>
# <details><summary>The idea</summary>
# m starts at minus infinity and the sum at 0.0. Both are single numbers, which a loop carries along; the tile is loaded anew in each loop.
# </details>
# <details><summary>The outline</summary>
# Loop 1: load, m becomes the larger of itself and the tile's maximum. Loop 2: load, add the sum of the exponentials of x - m. Loop 3: load, store the exponentials divided by the sum. The places are start + columns; all loads and the store have the mask places &lt; n, and the loads have minus infinity elsewhere.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-passes", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def softmax_passes_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Softmax of one row of n numbers, in three passes."""
    row = tl.program_id(0).to(tl.int64)  # an offset may pass 2^31
    x_ptr += row * n
    out_ptr += row * n
    columns = tl.arange(0, BLOCK)
    ### BEGIN SOLUTION
    m = float("-inf")
    for start in range(0, n, BLOCK):
        places = start + columns
        x = tl.load(x_ptr + places, mask=places < n, other=float("-inf"))
        m = tl.maximum(m, tl.max(x, 0))
    total = 0.0
    for start in range(0, n, BLOCK):
        places = start + columns
        x = tl.load(x_ptr + places, mask=places < n, other=float("-inf"))
        total += tl.sum(tl.exp(x - m), 0)
    for start in range(0, n, BLOCK):
        places = start + columns
        x = tl.load(x_ptr + places, mask=places < n, other=float("-inf"))
        tl.store(out_ptr + places, tl.exp(x - m) / total, mask=places < n)
    ### END SOLUTION


# %% [markdown]
# **When it does not work**: `try_softmax(softmax_passes_kernel)` is one row in one tile; then `n=32` (two tiles: what is carried from one to
# the next?), `n=20` (a short last tile), `rows=2` (only row 1 is wrong? Both pointers are at its beginning already), `shift=-300` and
# `shift=300` (all numbers far from 0: what comes out of the exponential?).


# %%
def try_softmax(kernel, rows=1, n=16, block=16, shift=0.0):
    """Launch a softmax kernel on small random rows near `shift`, and print its largest error and its first row."""
    torch.manual_seed(0)
    size = rows * n
    memory = shift + torch.randn(2 * size + block, device="cuda" if ON_GPU else "cpu")  # as in try_scale
    out = torch.full_like(memory, float("nan"))
    kernel[(rows,)](memory, out, n, BLOCK=block)
    x, result = memory[:size].view(rows, n), out[:size].view(rows, n)
    print("largest error in each row:", (result - x.softmax(1)).abs().amax(1).tolist())
    print("row 0:", result[0].tolist())
    if not out[size:].isnan().all():
        print(f"Written past the end: out has {size} numbers, and then", out[size : size + block].tolist())


# try_softmax(softmax_passes_kernel)

# %% nbgrader={"grade": true, "grade_id": "check-01-softmax-passes", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
check("01.softmax.passes", softmax_passes_kernel)

# %% [markdown]
# ### In one read
#
# Where a row fits in one tile, it need be read only once: the tile stays in registers from the load to the store. Write
# `softmax_fused_kernel`, with the same arguments, for `n <= BLOCK`. (Rows of any length in fewer reads than three are the subject of chapter 2.)
#
# <details><summary>A nudge</summary>
# Take your three passes, and remember that each loop runs once.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-fused", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def softmax_fused_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Softmax of one row of n <= BLOCK numbers: one load, one store."""
    row = tl.program_id(0).to(tl.int64)  # an offset may pass 2^31
    x_ptr += row * n
    out_ptr += row * n
    columns = tl.arange(0, BLOCK)
    ### BEGIN SOLUTION
    inside = columns < n
    x = tl.load(x_ptr + columns, mask=inside, other=float("-inf"))
    w = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + columns, w / tl.sum(w, 0), mask=inside)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-01-softmax-fused", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("01.softmax.fused", softmax_fused_kernel)

# %% [markdown]
# ### At which share of the bandwidth
#
# The same measurement as for `scale_kernel`, on rows of about 2,000 and of 4,096 numbers. There is more arithmetic for each byte now, an exponential and a
# division among it. It should still hide behind the traffic.

# %% nbgrader={"grade": true, "grade_id": "check-01-softmax-speed", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("01.softmax.speed", softmax_fused_kernel)

# %% [markdown]
# ### Your own measurement, on a GPU
#
# Not graded. Your three kernels beside a copy of the same matrix, PyTorch's softmax, and the same softmax as PyTorch operations that run one
# after another, each of which sends the matrix through HBM. The median of 20 calls after one that compiles; one shape, float32. Before each call
# the output is overwritten: while the card is at that, the call already waits in its queue, so that what Python takes is not timed.
#
# Before you run it: how many times as long as the copy should your three passes take, if each read comes from HBM? If they take less, a
# cache has served some of the reads: a row that was read a moment ago may still be there. The separate operations can't have that luck, for between them lies
# the whole matrix.


# %%
def race(rows=16384, n=4096):
    if not ON_GPU:
        print(
            "There is no GPU here, so there is nothing to time: an interpreter's seconds say nothing about a kernel."
        )
        return
    x = torch.randn(rows, n, device="cuda")
    out = torch.empty_like(x)

    def separate():
        w = torch.exp(x - x.amax(1, keepdim=True))
        return w / w.sum(1, keepdim=True)

    contestants = {
        "a copy": lambda: out.copy_(x),
        "your scale_kernel": lambda: scale_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), 3.0, BLOCK=1024),
        "your fused softmax": lambda: softmax_fused_kernel[(rows,)](x, out, n, BLOCK=triton.next_power_of_2(n), num_warps=8),
        "your three passes": lambda: softmax_passes_kernel[(rows,)](x, out, n, BLOCK=1024),
        "PyTorch's softmax": lambda: torch.softmax(x, 1),
        "separate operations": separate,
    }  # fmt: skip
    print(
        f"{torch.cuda.get_device_name()}: {rows} rows of {n} float32, {2 * x.nbytes / MIB:.0f} MiB to move at least"
    )
    copy = None
    for name, call in contestants.items():
        call()
        times = []
        for _ in range(20):
            out.zero_()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        time = sorted(times)[10]
        copy = copy or time
        print(f"{name:>20}: {time:8.3f} ms, {time / copy:6.2f} times the copy")


race()

# %% [markdown]
# ## What you can now do
#
# You can count what attention moves and computes in both of its forms, say from the counts what it waits for, and predict what it holds. You have
# written kernels whose cost is their traffic, with tails that touch nothing of anyone else's, and you know what to measure them against: a copy. Chapter 2
# takes up the question that is left: a softmax of a row that does not fit in one tile, without three reads.

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S, or Cmd+S), then run this cell. It reads the saved file as the grader will, says what is missing,
# and packs it; upload the file that it names. It runs none of your code, and you may hand in as often as you like: the newest
# counts. Where the upload does not know who you are, write `handin(student="your id")`.

# %%
from autograder import handin

handin()
