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
# # Exercise 2: The online softmax
#
# *How can a sum be right when the number that it is measured against still changes?*
#
# You write the softmax that does not overflow, then the one that sees its scores a tile at a time, then `merge`, which makes
# one state of two. You compute what stopping early can cost. At the end the same loop is a Triton kernel for rows of any
# length.
#
# | part | you write | checks | points |
# |---|---|---|---|
# | 1 | `safe_softmax`: no overflow | `02.softmax` | 2 |
# | 2 | `update` and `one_pass`: a running maximum and sum | `02.update`, `02.update.masked`, `02.one_pass` | 3 + 2 + 2 |
# | 3 | `merge` and `merge_all`: two states into one, and many | `02.merge`, `02.merge.empty`, `02.merge.laws` | 3 + 2 + 3 |
# | 4 | `how_far`: what keys that were not read can still do | `02.early` | 3 |
# | 5 | `softmax_kernel`: rows longer than a tile, in Triton | `02.kernel.full` | 4 |
# | 6 | the same kernel for rows of any length | `02.kernel.tails`, `02.kernel.strides`, `02.kernel.empty` | 2 + 2 + 2 |
#
# Every check has points of its own. `one_pass` calls your `update` and `merge_all` your `merge`, so a mistake in one of those
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
# ## Part 1: a softmax that does not overflow
#
# Write `safe_softmax(s)`: the softmax of each row.
#
# ```text
# s        rows x n     scores, float64 or float32; -inf where a key is masked, but never in a whole row
# return   rows x n     weights: not negative, and each row adds up to 1
# ```
#
# $$
# p_j = \frac{e^{s_j - m}}{\sum_k e^{s_k - m}}, \qquad m = \max_k s_k \ \text{ of the same row}
# $$
#
# A common mistake: one maximum for all rows together. A row that lies far below it loses all its weights, and 0 / 0 is NaN.
#
# <details><summary>A nudge</summary>
# np.exp(1000.0) is inf. By how much has each score to be lowered so that no exponential is above 1, and the largest is 1?
# </details>
# <details><summary>The idea</summary>
# A maximum along the last axis gives one number for each row. keepdims=True leaves it in a shape that can be subtracted from s.
# </details>
# <details><summary>The outline</summary>
# Two lines: the exponentials of s minus the maximum of each row; those divided by their sum along each row.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-softmax", "locked": false, "schema_version": 3, "solution": true, "task": false}
def safe_softmax(s):
    """Softmax along the rows of s (rows, n)."""
    ### BEGIN SOLUTION
    e = np.exp(s - s.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-02-softmax", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("02.softmax", safe_softmax)

# %% [markdown]
# ## Part 2: one pass
#
# The softmax of part 1 reads its row three times: for the maximum, for the sum, for the division. Maximum and sum can be had
# in one pass. Here sixteen scores arrive in tiles of four. Step through them (space or the arrow keys, once the picture has the
# focus), and watch what happens to `l` in a tile where the maximum moves. Its `o` is for part 3.

# %%
try:
    from widgets import Stepper

    stepper = Stepper(preset="random", tile=4)
except ImportError:
    stepper = "The stepper is part of the course's site: chapter 2, The online softmax."
stepper

# %% [markdown]
# Write `update(state, s)`, which takes the next few scores of a row into `(m, l)`.
#
# ```text
# state  m   float      largest score so far; -inf before the first tile
#        l   float      sum of exp(score - m)
# s          n          the next scores; -inf where a key is masked; the array is not written to
# return     (m, l)     the new state
# ```
#
# $$
# m' = \max\bigl(m, \max_j s_j\bigr), \qquad l' = e^{m - m'}\, l + \sum_j e^{s_j - m'}
# $$
#
# A common mistake: to replace `m` first and compute $e^{m - m'}$ afterwards. Then it is always 1.
#
# <details><summary>A nudge</summary>
# Take the scores 1 and 3 in tiles of one. After the first, the sum is exp(1 - 1) = 1. What should it have been, measured from 3?
# </details>
# <details><summary>The idea</summary>
# exp(s - m') = exp(s - m) exp(m - m'), and the second factor is the same for every score that was seen. So one multiplication corrects the whole sum.
# </details>
# <details><summary>The outline</summary>
# Three lines: the new maximum; the correction from the old and the new one; return the new maximum, and the corrected l plus the sum of the new exponentials.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-update", "locked": false, "schema_version": 3, "solution": true, "task": false}
def update(state, s):
    """The state (m, l) after the scores s (n,) as well."""
    m, l = state
    ### BEGIN SOLUTION
    m_new = max(m, s.max())
    shift = m_new if m_new > -np.inf else 0.0
    return m_new, np.exp(m - shift) * l + np.exp(s - shift).sum()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-02-update", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("02.update", update)

# %% [markdown]
# ### When scores are masked
#
# A masked key has the score `-inf` and the weight $e^{-\infty} = 0$, and needs no care. Except once: a tile of nothing but
# `-inf`, before any other score was seen. Then `m` is `-inf` before and after, and the formula subtracts `-inf` from `-inf`.
# Make your `update` give back the empty state `(-inf, 0)` there, and run `02.update` again, then the check below.
#
# A common mistake: to let `m` start from, or fall back to, a number such as -10000. A row whose true scores lie below it then
# loses all its weights.
#
# <details><summary>A nudge</summary>
# Print m - m' and s - m' for a tile of -inf in the empty state.
# </details>
# <details><summary>The idea</summary>
# m has to stay -inf. What is subtracted inside the exponentials need not be m: for such a tile any finite number gives exp(-inf) = 0.
# </details>
# <details><summary>The outline</summary>
# Beside the new maximum a second number, the shift: the new maximum where that is finite, else 0. Subtract the shift; return the maximum.
# </details>

# %% nbgrader={"grade": true, "grade_id": "check-02-update-masked", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("02.update.masked", update)

# %% [markdown]
# ### The pass
#
# Write `one_pass(s, tile)`: start from the empty state, and give the row to `update` a tile at a time.
#
# ```text
# s        n        one row of scores
# tile     int      scores in a tile; n need not be a multiple of it
# return   (m, l)   of the whole row
# ```
#
# A common mistake: to start from `m = 0`. The largest score of a row may be negative.
#
# <details><summary>A nudge</summary>
# Which number is below every score, and what is the sum over no scores?
# </details>
# <details><summary>The outline</summary>
# The empty state; a loop over the first index of each tile, with one call of update on a slice. A slice that reaches past the end of an array is cut short by NumPy.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-one-pass", "locked": false, "schema_version": 3, "solution": true, "task": false}
def one_pass(s, tile):
    """The state (m, l) of a whole row s (n,), read once in tiles."""
    ### BEGIN SOLUTION
    state = (-np.inf, 0.0)
    for start in range(0, len(s), tile):
        state = update(state, s[start : start + tile])
    return state
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-02-one-pass", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("02.one_pass", one_pass)

# %% [markdown]
# ## Part 3: merge
#
# Attention needs one thing more than `(m, l)`: the weighted sum of the values, `o`. And the parts of a row need not come one
# after another. Two workers may each take half of the keys, and someone makes one state of their two. Write `merge(a, b)`,
# for many queries at once.
#
# ```text
# a, b   m   rows       largest score of each query among a's keys, or b's
#        l   rows       sum of exp(score - m)
#        o   rows x d   sum of exp(score - m) * value, not divided by l
# return     (m, l, o)  the state over the keys of both; neither a nor b is written to
# ```
#
# $$
# m = \max(m_a, m_b), \qquad
# l = e^{m_a - m}\, l_a + e^{m_b - m}\, l_b, \qquad
# o = e^{m_a - m}\, o_a + e^{m_b - m}\, o_b
# $$
#
# A common mistake: to correct `a` alone, as `update` does. There the new exponentials were measured from the new maximum;
# here both sides were measured from maxima of their own.
#
# <details><summary>A nudge</summary>
# The side with the larger maximum has the factor exp(0) = 1. Which side that is differs from row to row.
# </details>
# <details><summary>The idea</summary>
# One maximum, element by element, and two factors of shape (rows,), one for each side. To multiply o they need a second axis: factor[:, None].
# </details>
# <details><summary>The outline</summary>
# Unpack a and b; np.maximum; two factors; l and o as sums of two corrected terms; return all three.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-merge", "locked": false, "schema_version": 3, "solution": true, "task": false}
def merge(a, b):
    """The state (m, l, o) over the keys of a and of b together."""
    m_a, l_a, o_a = a
    m_b, l_b, o_b = b
    ### BEGIN SOLUTION
    m = np.maximum(m_a, m_b)
    shift = np.where(m > -np.inf, m, 0.0)
    w_a, w_b = np.exp(m_a - shift), np.exp(m_b - shift)

    def corrected(w, x):
        return np.where(w > 0, w * x, 0.0)  # no factor will do: 0 * NaN is NaN

    l = corrected(w_a, l_a) + corrected(w_b, l_b)
    o = corrected(w_a[:, None], o_a) + corrected(w_b[:, None], o_b)
    return m, l, o
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-02-merge", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("02.merge", merge)

# %% [markdown]
# ### An empty side
#
# A worker may get no key at all, or only masked ones. Its state is empty: `m` is `-inf`. Merging with it changes nothing, and
# two empty sides make an empty state, `(-inf, 0, 0)`. One thing makes this harder than it sounds: `m` alone says that a side is
# empty. A worker with nothing to do may leave in `l` and `o` whatever was in that memory, NaN included, and none of it may come
# out.
#
# <details><summary>A nudge</summary>
# There are two ways to a NaN here: -inf minus -inf, where both sides are empty, and 0 times NaN, where one is.
# </details>
# <details><summary>The idea</summary>
# The first is cured as in part 2, now by element: np.where(condition, x, y). For the second no factor will do, since 0 times NaN is NaN: where the weight is 0, choose 0.0 in place of the product.
# </details>
# <details><summary>The outline</summary>
# A shift that is the new m where that is finite and 0 elsewhere. Around each of the four products an np.where: the product where its weight is above 0, else 0.0.
# </details>

# %% nbgrader={"grade": true, "grade_id": "check-02-merge-empty", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("02.merge.empty", merge)

# %% [markdown]
# ### Any order, any grouping
#
# Merging is the union of two sets of keys, so it has the laws of a union: $a \cdot b = b \cdot a$,
# $(a \cdot b) \cdot c = a \cdot (b \cdot c)$, and an identity, the empty state. Therefore any tree of merges over the same
# states gives the same result. Write `merge_all(states, tree)`, which merges as the tree says.
#
# ```text
# states   tuple of states, each (m, l, o) as above
# tree     an int i                the state states[i] itself
#          a pair (left, right)    what left gives, merged with what right gives; each is again an int or a pair
# return   (m, l, o)
# ```
#
# So `((0, 1), 2)` is $(a \cdot b) \cdot c$, and `(2, (0, 1))` is $c \cdot (a \cdot b)$. A state that the tree does not name
# has no part in the result. The check gives your function several trees over the same states, on many random rows and on hard
# ones: masked keys, empty states, scores of thousands. Each tree should give the state over all keys, and the table says which
# one does not. No two empty states are merged here, and none holds NaN: those are the check above.
#
# <details><summary>A nudge</summary>
# What has merge_all(states, left) to do with the task?
# </details>
# <details><summary>The outline</summary>
# Two cases. isinstance(tree, int): return that state. Otherwise unpack the pair, call merge_all for each half, and merge the two results.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-merge-all", "locked": false, "schema_version": 3, "solution": true, "task": false}
def merge_all(states, tree):
    """The states that the tree names, merged as it says."""
    ### BEGIN SOLUTION
    if isinstance(tree, int):
        return states[tree]
    left, right = tree
    return merge(merge_all(states, left), merge_all(states, right))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-02-merge-laws", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("02.merge.laws", merge_all)

# %% [markdown]
# ## Part 4: why you may not stop early
#
# After some tiles `o / l` hardly moves. May the loop stop? Let the keys that were not read take the share $w$ of all the
# weight, and let $\bar v$ be their own weighted average. Then the final output is a merge of the two:
#
# $$
# (1 - w)\, \frac{o}{l} + w\, \bar v , \qquad\text{so it moves by}\quad w \,\Bigl|\, \bar v - \frac{o}{l} \,\Bigr| .
# $$
#
# Write `how_far(state, left, highest, low, high)`: the furthest that each number of the output can still move. All that is
# known of the unread keys is in the arguments.
#
# ```text
# state     m, l, o    rows, rows, rows x d: what was read, at least one key with a finite score in each row
# left      int        keys that were not read, 0 or more; the same number for each row
# highest   rows       no unread score of that row is larger; inf where nothing is known of the keys that are left, -inf
#                      where all of them are masked, or none is left
# low, high float      every number of every unread value lies between these two, and may be either
# return    rows x d   the largest possible change
# ```
#
# A common mistake: `high - low` times the share. It is a bound, but the output stands somewhere between the two already, so it
# cannot move by all of that.
#
# <details><summary>A nudge</summary>
# Which scores of the unread keys give them the largest share? And which of their values, low or high, is further from o / l?
# </details>
# <details><summary>The idea</summary>
# At worst all unread scores equal highest. Measured from highest, the unread keys then weigh left * exp(0), and what was read weighs l * exp(m - highest). The share is the first divided by both together.
# </details>
# <details><summary>Where nothing is known</summary>
# Measured from the larger of m and highest, inf - inf is NaN. Measured from highest alone, exp(m - inf) is 0 and the share is 1, which is the truth; and where m lies far above highest, exp overflows to inf and the share is 0, which is right to the last bit that matters. NumPy prints a RuntimeWarning then, which with np.errstate(over="ignore") around that line keeps back.
# </details>
# <details><summary>The outline</summary>
# Three lines: the output so far, for which l has to be a column; the share, of shape (rows,); the share as a column, times the larger of |high - output| and |output - low|.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-early", "locked": false, "schema_version": 3, "solution": true, "task": false}
def how_far(state, left, highest, low, high):
    """How far each number of o / l (rows, d) can still move."""
    m, l, o = state
    ### BEGIN SOLUTION
    now = o / l[:, None]
    with np.errstate(over="ignore"):  # where exp is inf, the share is 0
        share = left / (left + l * np.exp(m - highest))
    room = np.maximum(np.abs(high - now), np.abs(now - low))
    return share[:, None] * room
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-02-early", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check("02.early", how_far)

# %% [markdown]
# ### See it
#
# Not graded. A row of 1024 scores whose last key is the strong one, in tiles of 64. The cell puts four things side by side:
# how far the last tile moved the output, how far your function says that it can still move when nothing is known, how far it
# would if no unread score were above 2, and how far it really has to go. The assumption is false for this row: compare its
# column with the last one. Then change the last score and its place: for `settle(last=2.0)` it is true.


# %%
def settle(last=12.0, at=-1, assumed=2.0, n=1024, tile=64):
    rng = np.random.default_rng(3)
    s, v = np.minimum(rng.standard_normal(n), 2.0), rng.uniform(-1, 1, (n, 1))
    s[at] = last

    def state(seen):
        m = s[:seen].max()
        p = np.exp(s[:seen] - m)
        return np.array([m]), np.array([p.sum()]), (p @ v[:seen])[None]

    if how_far(state(tile), 1, np.array([0.0]), -1.0, 1.0) is None:
        print("how_far returns nothing yet: write part 4 first.")
        return
    outputs = {}
    for seen in range(tile, n + 1, tile):
        _, l, o = state(seen)
        outputs[seen] = (o / l).item()
    print(f"scores read   o / l   moved by   can move   if none is above {assumed:g}   has to go")
    for seen, output in outputs.items():
        moved = f"{abs(output - outputs[seen - tile]):.4f}" if seen > tile else ""
        unread = n - seen
        can, could = (
            how_far(state(seen), unread, np.array([highest if unread else -np.inf]), -1.0, 1.0).item()
            for highest in (np.inf, assumed)
        )
        to_go = abs(outputs[n] - output)
        print(f"{seen:11} {output:7.3f} {moved:>10} {can:10.3f} {could:20.3f} {to_go:11.3f}")


settle()

# %% [markdown]
# ## Part 5: the kernel
#
# Write `softmax_kernel`: the softmax of rows that are longer than a tile. A program of the grid has one row. It walks over it
# twice: the first walk is `one_pass`, with `m` and `l` in registers; only after it are `m` and `l` known, so a second walk
# loads each tile again and stores its weights. The signature is fixed, and the grader launches the kernel itself.
#
# ```text
# x_ptr, out_ptr               scores, and where the weights go; of one type, float32 or float16
# x_row_stride, x_stride       element (i, j) of x is at x_ptr + i * x_row_stride + j * x_stride
# out_row_stride, out_stride   the same for out
# n                            scores in a row, at least 1
# grid                         rows
# BLOCK                        scores in a tile, a power of two, at least 16
#
# in a program   columns       BLOCK     0, 1, ...
#                s, p          BLOCK     float32, whatever the type of x is
#                m, l          one number each, float32
# ```
#
# | you need | in Triton |
# |---|---|
# | a tile of memory, a number of your choice where the mask is false | `tl.load(pointers, mask=..., other=...)` |
# | to write one | `tl.store(pointers, values, mask=...)` |
# | another type | `x.to(tl.float32)` |
# | over a tile | `tl.max(s, 0)`, `tl.sum(p, 0)` |
# | by element, and of single numbers | `tl.maximum`, `tl.exp`, `tl.where(condition, a, b)` |
# | a loop over tiles | `for start in range(0, n, BLOCK):` |
# | minus infinity | `float("-inf")` |
#
# If this is your first kernel, do part 3 of exercise 0 before: a pointer plus a tile of offsets is a tile of pointers.
#
# Begin with rows of whole tiles that lie one behind another: `n` is a multiple of `BLOCK`, the strides are `n` and 1. Part 6
# comes back to this cell for everything else.
#
# A common mistake: to store the weights in the first walk. They are divided by an `l` that is not finished.
#
# <details><summary>A nudge</summary>
# Put your update beside it. Its lines become the body of the first loop, with tl in place of np.
# </details>
# <details><summary>The idea</summary>
# exp(s - m) / l needs the m and the l of the whole row. So the first loop stores nothing, and the second needs no correction.
# </details>
# <details><summary>The outline</summary>
# Add row times the row strides to the two pointers. m = -inf and l = 0.0; a loop that loads a tile and updates both. A second loop that loads the same tile and stores exp(s - m) / l.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-kernel", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def softmax_kernel(
    x_ptr,
    out_ptr,
    x_row_stride,
    x_stride,
    out_row_stride,
    out_stride,
    n,
    BLOCK: tl.constexpr,
):
    """One row in tiles of BLOCK: a walk for (m, l), a walk to store."""
    row = tl.program_id(0).to(tl.int64)  # an offset may pass 2^31
    columns = tl.arange(0, BLOCK).to(tl.int64)
    ### BEGIN SOLUTION
    x_ptr += row * x_row_stride
    out_ptr += row * out_row_stride
    m = float("-inf")
    l = 0.0
    for start in range(0, n, BLOCK):
        j = start + columns
        s = tl.load(x_ptr + j * x_stride, mask=j < n, other=float("-inf"))
        s = s.to(tl.float32)
        m_new = tl.maximum(m, tl.max(s, 0))
        shift = tl.where(m_new == float("-inf"), 0.0, m_new)
        l = tl.exp(m - shift) * l + tl.sum(tl.exp(s - shift), 0)
        m = m_new
    final = tl.where(m == float("-inf"), 0.0, m)
    total = tl.where(l == 0.0, 1.0, l)
    for start in range(0, n, BLOCK):
        j = start + columns
        s = tl.load(x_ptr + j * x_stride, mask=j < n, other=float("-inf"))
        s = s.to(tl.float32)
        p = tl.exp(s - final) / total
        tl.store(out_ptr + j * out_stride, p, mask=j < n)
    ### END SOLUTION


# %% [markdown]
# **When it does not work**, go up this ladder; each rung is smaller than the check.
#
# 1. One row of 16, BLOCK 16: each loop runs once, so the correction plays no part. Wrong here? Look at the addresses and the
#    division.
# 2. 32 scores: the loops run twice. Wrong only now? Look at the correction, and at whether `m` is kept for the next tile.
# 3. Two rows. Only row 1 wrong? Look at the row strides.
# 4. 17 scores, for part 6: one in the last tile. NaN only now? A load has no mask, and here NaN lies behind the scores. Wrong
#    only now? Look at `other` in the loads. A sentence on what lies behind `out`? Look at the store.
# 5. In the interpreter a kernel is Python: `print(m, l)` in the loop shows the state. On a GPU use `tl.device_print`. An error
#    that names `to_tensor` says that a NumPy function was given something of Triton's: write `tl.exp`, not `np.exp`.
# 6. All of the output is NaN? Either nothing was stored, or `l` is NaN: print it after each tile.


# %%
def try_kernel(rows=1, n=16, block=16):
    """Launch your kernel on small random rows, and print what it gives beside torch's softmax."""
    torch.manual_seed(0)
    # Room behind both, so that a kernel that runs past the end of a row reads and writes there and harms nothing else.
    memory = torch.full((2, rows * n + 2**16), float("nan"), device="cuda" if ON_GPU else "cpu")
    (x, out), behind = memory[:, : rows * n].view(2, rows, n), memory[1, rows * n :]
    x.copy_(3 * torch.randn(rows, n))
    behind.fill_(-1.0)  # no weight, and not what comes of NaN either
    softmax_kernel[(rows,)](x, out, *x.stride(), *out.stride(), n, BLOCK=block)
    if (behind != -1.0).any():
        print("The kernel wrote past the end of out: look at the mask of the store, and at the strides.")
    print("largest error:", (out - x.double().softmax(-1)).abs().max().item())
    print("each row adds up to:", out.sum(-1).tolist())
    print("row 0:", out[0].tolist())


# try_kernel()              # rung 1; then try_kernel(n=32), try_kernel(rows=2), try_kernel(n=17)

# %% nbgrader={"grade": true, "grade_id": "check-02-kernel-full", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
check("02.kernel.full", softmax_kernel)

# %% [markdown]
# ## Part 6: rows of any length
#
# Three rounds, all in the cell of part 5. Each has a check of its own.
#
# ### Tails
#
# The last tile reaches past `n`. Mask every load and the store; a score that is not there needs weight 0.
#
# <details><summary>A nudge</summary>
# In the last tile of a row of 17, what does your first loop add to l for the 15 places that are not scores?
# </details>
# <details><summary>The idea</summary>
# start + columns &lt; n is the mask of both loads and of the store. The number for what is not there should be one whose exponential is 0, and that is not 0.0.
# </details>

# %% nbgrader={"grade": true, "grade_id": "check-02-kernel-tails", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("02.kernel.tails", softmax_kernel)

# %% [markdown]
# ### Strides
#
# A row may be part of something wider, a column of a matrix, or the same row again and again. Both strides count, of `x` and of
# `out`, and those of `out` are not those of `x`: a store by the wrong ones may end up past the end of `out`, mask or not.
#
# <details><summary>The idea</summary>
# Never n where a stride is meant: the row begins at row * x_row_stride, and its j-th score lies j * x_stride behind that. The same once more for out.
# </details>

# %% nbgrader={"grade": true, "grade_id": "check-02-kernel-strides", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("02.kernel.strides", softmax_kernel)

# %% [markdown]
# ### Empty tiles, empty rows
#
# Scores may be `-inf`: a whole tile of them, also the first one, and a whole row. The weights of such a row are 0.
#
# <details><summary>The idea</summary>
# The guard of part 2 with tl.where, in the first loop and once more before the second. And a row of nothing but -inf ends with l = 0: divide by something else there.
# </details>

# %% nbgrader={"grade": true, "grade_id": "check-02-kernel-empty", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("02.kernel.empty", softmax_kernel)

# %% [markdown]
# ## Your own measurement
#
# Not graded. Over the real numbers the tile size changes nothing. In float32 it changes how the sum rounds. The cell runs your
# `one_pass` on rows of float32 scores with tiles from 1 to the whole row, and compares $m + \log l$ with the same in float64.
# The unit is the distance between neighbouring float32 numbers at the result. It says nothing about speed, and nothing about
# other distributions of scores. Which sums does NumPy make inside a tile, and which does `update` make one after another?


# %%
def measure(rows=4, n=8192, tiles=(1, 8, 64, 512, 8192)):
    s = (3 * np.random.default_rng(0).standard_normal((rows, n))).astype(np.float32)
    wide = s.astype(np.float64)
    top = wide.max(axis=1)
    truth = top + np.log(np.exp(wide - top[:, None]).sum(axis=1))
    unit = np.spacing(truth.astype(np.float32)).astype(np.float64)
    print(f"{rows} rows of {n} float32 scores")
    for tile in tiles:
        results = [one_pass(row, tile) for row in s]
        if None in results:
            print("one_pass returns nothing yet: write part 2 first.")
            return
        lse = np.array([float(m) + np.log(float(l)) for m, l in results])
        print(
            f"tiles of {tile:4}: m + log(l) is off by at most {(np.abs(lse - truth) / unit).max():5.2f} units"
        )


measure()

# %% [markdown]
# ### On a GPU: how near to a copy?
#
# A softmax has to read each score once and write each weight once, as a copy does; your kernel reads each score twice. The cell
# times your kernel, PyTorch's softmax and a copy on the same 2^26 numbers in rows of several lengths: the median of 20 calls
# after one that compiles. The rate counts one read and one write, whatever a kernel does. If the second walk had to fetch
# everything from the GPU's main memory again, your rate would be at most two thirds of the copy's. Where is it higher, and
# what keeps a row close by between the two walks?


# %%
def race(sizes=(1024, 8192, 65536, 524288), block=1024):
    if not ON_GPU:
        print(
            "There is no GPU here, so there is nothing to time: an interpreter's seconds say nothing about a kernel."
        )
        return
    print(f"{torch.cuda.get_device_name()}, float32, 2^26 numbers, tiles of {block}")
    for n in sizes:
        x = torch.randn(2**26 // n, n, device="cuda")
        out = torch.empty_like(x)
        contestants = {
            "yours": lambda: softmax_kernel[(len(x),)](x, out, *x.stride(), *out.stride(), n, BLOCK=block),  # noqa: B023
            "PyTorch's": lambda: torch.softmax(x, -1),  # noqa: B023
            "copy": lambda: out.copy_(x),  # noqa: B023
        }
        rates = []
        for name, call in contestants.items():
            call()
            times = []
            for _ in range(20):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                call()
                end.record()
                torch.cuda.synchronize()
                times.append(begin.elapsed_time(end))
            rates.append(f"{name} {2 * 4 * 2**26 / sorted(times)[10] / 1e6:6.0f} GB/s")
        print(f"rows of {n:6}: " + ", ".join(rates))


race()

# %% [markdown]
# ## What you can now do
#
# You can carry a softmax over tiles in two numbers for each row, say what corrects them and when, merge states that were made
# apart in any order, say how far an unfinished output can still move, and write the loop as a kernel for rows of any length
# and any stride. Exercise 3 carries `o` along as well, and that is FlashAttention.

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S, or Cmd+S), then run this cell. It reads the saved file as the grader will, says what is missing,
# and packs it; upload the file that it names. It runs none of your code, and you may hand in as often as you like: the newest
# counts. Where the upload does not know who you are, write `handin(student="your id")`.

# %%
from autograder import handin

handin()
