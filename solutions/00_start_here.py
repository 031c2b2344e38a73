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
# # Exercise 0: Start here
#
# *How will you know that your code is right?*
#
# About an hour. You write one line of NumPy and see what a check says about it; you find two bugs from a table; you write
# a first Triton kernel; and you see three things that Triton's interpreter does otherwise than a GPU.
#
# | part | you write | checks | points |
# |---|---|---|---|
# | 1 | `scores`: a number for each query and each key | `00.scores` | 2 |
# | 2 | `weighted_values`: a broken function, mended | `00.mend.tiles`, `00.mend.precision` | 2 + 1 |
# | 3 | `add_kernel`: a first kernel | `00.add.full`, `00.add.tails` | 2 + 1 |
# | 4 | `dot_kernel`: a product that is right on both machines | `00.dot.float32`, `00.dot.bfloat16` | 1 + 1 |
#
# No part needs what you write in another. A check runs public cases here and shows each of them; the grader repeats it with
# other sizes and other numbers of the same kinds. You may add cells wherever you like, and they are kept. The cells with a
# `check` and the set-up cell are replaced by the originals when you are graded.

# %% [markdown]
# ## What you need
#
# The set-up cell below prepares each of these places. Run it first, and again after every restart of the kernel.
#
# - **JupyterLab or VS Code** in the course's folder: `make lab` once, then choose the kernel of `.venv`.
# - **Colab**: open this notebook there and run the cell; it installs the course from
#   <{{repository}}>. For parts 3 and 4 a GPU runtime is faster, but not needed.
# - **No GPU**: Triton runs your kernel in its interpreter, in Python, on the CPU. It is slow, and gives the same results but for
#   the differences that part 4 shows.
# - **macOS and native Windows**: Triton has no build there. Parts 1 and 2 work; for 3 and 4 the set-up cell says where to go.

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
        "Parts 3 and 4 run",
        f"on {torch.cuda.get_device_name()}." if ON_GPU else "in Triton's interpreter, on the CPU.",
    )
else:
    print(
        "Parts 3 and 4 wait: Triton has no build for this system. Do them in Colab, the dev container or WSL."
    )

    class triton:  # a stand-in that lets the cells of parts 3 and 4 be read and run; their checks wait
        jit = staticmethod(lambda kernel: kernel)

    class tl:
        constexpr = int


# %% [markdown]
# ## Part 1: a function and its check
#
# Attention starts from scores. A query and a key are rows of d numbers (chapter 2 says where they come from); a query is compared
# with a key by their product, number by number and summed, which is divided by the square root of d. Write `scores(q, k)`.
#
# ```text
# q        n_q x d     one query a row
# k        n_k x d     one key a row
# return   n_q x n_k   entry i, j belongs to query i and key j; q and k stay as they are
# ```
#
# $$
# s_{ij} = \frac{1}{\sqrt{d}} \sum_c q_{ic}\, k_{jc}
# $$
#
# Before you write it, look at what a check says about a wrong one. Here the factor $1/\sqrt{d}$ is forgotten. Run the cell and
# read its table from the top.


# %%
def look(name, target):
    """Make a check and show its table. A check that fails stops the notebook; here it says so and the notebook goes on."""
    try:
        check(name, target)
    except AssertionError as failed:
        print("it would stop with:", failed)


def forgetful(q, k):
    return q @ k.T


look("00.scores", forgetful)

# %% [markdown]
# Each line is a case. It says whether the case passes, how far the worst element is off, and how far it may be. Under the table
# is what you need for the first case that fails:
#
# - `what` names the trouble in a word: a wrong number, a wrong shape, an exception.
# - `first wrong` is the first element that is off; `expected` is its right value, and `got` is what came. Divide `got` by
#   `expected`, and compare with the d of the case. It would be the same for every other element.
# - `hint` is there when the wrong numbers are exactly those of a mistake that the course knows.
#
# One case passes although the function is wrong. Why? Its name tells.
#
# The tolerance is what a right answer may lose because it adds in another order. In the last case q and k are float32, so there
# the tolerance is larger.
#
# A common mistake, in functions that are otherwise right: `q /= ...` changes the caller's q. The check says that argument 1 was
# written to; it counts from 1, so that is q.
#
# <details><summary>A nudge</summary>
# For q @ k NumPy complains about a mismatch in a core dimension: a row of q and a column of k differ in length. Which of the two has to be turned for the result to be n_q x n_k?
# </details>
# <details><summary>The idea</summary>
# A matrix product with the transpose of k compares every row of q with every row of k. The length of a row is q.shape[1].
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-scores", "locked": false, "schema_version": 3, "solution": true, "task": false}
def scores(q, k):
    """Scaled scores (n_q, n_k) of q (n_q, d) and k (n_k, d)."""
    ### BEGIN SOLUTION
    return q @ k.T / np.sqrt(q.shape[1])
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-00-scores", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("00.scores", scores)

# %% [markdown]
# ## Part 2: a bug from its table
#
# Attention ends with a sum: each query has a weight for every key, and its output is the sum of the values with those weights,
# the product `w @ v`. The course never holds all weights at once, so it adds up that sum tile by tile: some keys, then the next
# ones. The function below does that, and it has two bugs.
#
# ```text
# w        n_q x n   weights, one row for each query
# v        n x dv    values
# tile     int       keys in a tile; n need not be a multiple of it
# return   n_q x dv  w @ v
# ```
#
# Do not read the function yet. Run the cell and read the two tables. Which cases pass, which fail, and what do the names of those
# that fail have in common? And how large is the error beside the numbers themselves: a good part of them, or in the eighth digit?
# How large the numbers are, the tolerance tells: w and v are float64, so it is $10^{-12}$ of the largest number expected.


# %%
def broken(w, v, tile):
    """w @ v, a tile of keys at a time. Two bugs."""
    total = np.zeros((len(w), v.shape[1]), dtype=np.float32)
    for tile_number in range(len(v) // tile):
        keys = slice(tile_number * tile, (tile_number + 1) * tile)
        total += w[:, keys] @ v[keys]
    return total


look("00.mend.tiles", broken)
look("00.mend.precision", broken)

# %% [markdown]
# | what the table shows | what it often means |
# |---|---|
# | an error that is a good part of the numbers | something is missing, is there twice, or is another thing |
# | only some sizes fail | look at what those sizes do at the end of a loop |
# | everything fails by a little, about 1e-7 of the numbers | a float32 somewhere; float64 has 16 digits, float32 has 7 |
# | no numbers in the two columns, and a shape in `what` | an axis too many, or a transpose |
# | no numbers there, and an exception in `what` | the function did not come to its end |
# | NaN | 0/0, infinity minus infinity, or memory that nobody wrote |
#
# One case fits the third line badly: the last one of the second table is off by as much as its numbers. It is built to make a small
# loss large. On the way its sum is $10^9$, the last term takes that away again, and what remains is small.
#
# Now write `weighted_values`, the same without the bugs. Keep the tiles: the checks can't see them, so that `w @ v` passes, but
# later a tile is all that fits.
#
# A common mistake: to go on to a tile that begins at `n - tile`, so that every tile is whole. Then some keys are in two tiles.
#
# <details><summary>The first table: a nudge</summary>
# How often does the loop run for 40 keys in tiles of 16? Which keys does it see?
# </details>
# <details><summary>The first table: the idea</summary>
# range(start, stop, step) gives the first key of each tile, and NumPy cuts a slice that reaches past the end.
# </details>
# <details><summary>The second table: a nudge</summary>
# w and v are float64, and the result is not. Where is the sum kept?
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-mend", "locked": false, "schema_version": 3, "solution": true, "task": false}
def weighted_values(w, v, tile):
    """w (n_q, n) @ v (n, dv), a tile of keys at a time."""
    ### BEGIN SOLUTION
    total = np.zeros((len(w), v.shape[1]))
    for start in range(0, len(v), tile):
        total += w[:, start : start + tile] @ v[start : start + tile]
    return total
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-00-mend-tiles", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("00.mend.tiles", weighted_values)

# %% nbgrader={"grade": true, "grade_id": "check-00-mend-precision", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("00.mend.precision", weighted_values)

# %% [markdown]
# ## Part 3: a first kernel
#
# A Triton kernel is a function that many programs run, each on its own piece of the data. The programs are numbered; together they
# are the grid. `tl.program_id(0)` tells a program which one it is, and there is no loop over the pieces.
#
# Three things are new to a reader of NumPy.
#
# - **The launch.** `@triton.jit` makes a function a kernel. `add_kernel[grid](x, y, out, n, BLOCK=4)` starts it: in square brackets
#   how many programs, then what each of them gets. They all get the same, and run the same lines.
# - **Pointers.** A kernel does not get an array but the place in memory where its numbers begin. `x_ptr + 3` is the place of the
#   number x[3]. `x_ptr + places`, with a block of places 4, 5, 6, 7, is a block of four such pointers; `tl.load` reads what stands
#   there, and `tl.store` writes there. A pointer can't be indexed, and does not know where the vector ends: for that there is n.
# - **`tl.constexpr`** marks a number that is fixed when the kernel is compiled. The size of a block has to be: `tl.arange(0, BLOCK)`
#   is a block of that many numbers.
#
# Write `add_kernel`, the sum of two vectors. The signature is fixed, and the grader launches the kernel itself.
#
# ```text
# x_ptr, y_ptr   n          the vectors, in memory one number after another
# out_ptr        n          the result, of their type
# n              int        need not be a multiple of BLOCK
# BLOCK          constexpr  a power of two: how many numbers a program looks after
# grid           cdiv(n, BLOCK), which is n / BLOCK rounded up: the number of blocks, the last one included when it is short
# ```
#
# With n = 10 and BLOCK = 4 there are three programs: the first has the numbers 0 to 3, the second 4 to 7, and the third 8 and 9,
# and two places behind the end.
#
# | you need | in Triton |
# |---|---|
# | the numbers of this block's places: 0, 1, ... | `tl.program_id(0)`, `BLOCK`, `tl.arange(0, BLOCK)` |
# | a piece of memory | `tl.load(x_ptr + places, mask=..., other=0.0)` |
# | to write one | `tl.store(out_ptr + places, values, mask=...)` |
#
# Where the mask is false, `tl.load` reads nothing and gives `other`, and `tl.store` writes nothing. What lies behind the end of
# `out` belongs to somebody else, so the check looks whether you wrote there. Whether you read behind the end of x and y it can't
# see; but there may be no memory at all, so the loads take the mask as well.
#
# Write it in two rounds: first for whole blocks, then with the mask.
#
# Common mistakes:
#
# - `tl.program_id(0) + tl.arange(0, BLOCK)`: blocks that begin one place apart, and overlap.
# - `x_ptr[places]`, or `np.arange` in place of `tl.arange`. In the interpreter the check then shows an exception that names neither:
#   an `int` that is not iterable, or an array that has no `type`.
# - `places <= n`: the last place is n - 1. The check says that one place past the end was written.
#
# <details><summary>A nudge</summary>
# Program 2 with BLOCK = 4 has the places 8, 9, 10 and 11. Write that as a formula of 2 and 4.
# </details>
# <details><summary>The idea</summary>
# places = the program's number times BLOCK, plus 0, 1, ..., BLOCK - 1. The mask is places &lt; n, and both loads and the store take it.
# </details>
# <details><summary>The outline</summary>
# Four lines: the places; one load for x and one for y; a store of their sum.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-add", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """out = x + y, for the BLOCK places of this program."""
    ### BEGIN SOLUTION
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < n, other=0.0)
    y = tl.load(y_ptr + places, mask=places < n, other=0.0)
    tl.store(out_ptr + places, x + y, mask=places < n)
    ### END SOLUTION


# %% [markdown]
# `try_add` launches it on a few numbers and prints what stands in `out`, NaN where nothing was written, and what was written behind
# its end, where nothing should be. In the interpreter a kernel is Python: a `print(places)` in it shows which places a program has.
# On a GPU that is `tl.device_print("places", places)`.


# %%
# So many numbers lie behind the end of each vector: a kernel that goes too far is seen there, and harms nothing.
ROOM = 1 << 16


def try_add(n=8, block=4):
    """Launch your kernel on x = 0, 1, ... and y = 100, 100, ..., and print what it gives."""
    x = torch.arange(n + ROOM, dtype=torch.float32, device="cuda" if ON_GPU else "cpu")
    y, out = torch.full_like(x, 100), torch.full_like(x, float("nan"))
    add_kernel[(triton.cdiv(n, block),)](x, y, out, n, BLOCK=block)
    behind = out[n:][~out[n:].isnan()].tolist()
    print("out:", out[:n].tolist())
    print("behind its end:", f"WRITTEN, {behind[:8]}" if behind else "untouched")


# try_add()               # round 1: whole blocks alone. Round 2: try_add(n=10), where the last block is short

# %% [markdown]
# ### Round 1: whole blocks

# %% nbgrader={"grade": true, "grade_id": "check-00-add-full", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check("00.add.full", add_kernel)

# %% [markdown]
# ### Round 2: a last block that is short

# %% nbgrader={"grade": true, "grade_id": "check-00-add-tails", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("00.add.tails", add_kernel)

# %% [markdown]
# ### What the interpreter costs
#
# Not graded. Without a GPU the programs run one after another, in Python. Change `block`, and see what the time follows: the
# numbers, or the programs?

# %%
import time


def measure(n=1 << 16, block=256):
    if not HAS_TRITON:
        print("Triton has no build for this system, so there is nothing to time.")
        return
    x, y = torch.randn(2, n + ROOM, device="cuda" if ON_GPU else "cpu")
    out = torch.full_like(x, float("nan"))
    grid = (triton.cdiv(n, block),)
    add_kernel[grid](x, y, out, n, BLOCK=block)  # on a GPU the first launch compiles
    x, y = x[:n], y[:n]
    if not torch.equal(out[:n], x + y):
        print("add_kernel does not add yet: write part 3 first.")
        return
    times = {}
    for name, call in {
        "torch": lambda: x + y,
        "add_kernel": lambda: add_kernel[grid](x, y, out, n, BLOCK=block),
    }.items():
        seconds = []
        for _ in range(5):
            begin = time.perf_counter()
            call()
            if ON_GPU:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
        times[name] = sorted(seconds)[2]
    where = torch.cuda.get_device_name() if ON_GPU else "interpreter"
    print(f"{n:,} numbers in {grid[0]:,} programs, median of 5 calls ({where})")
    for name, seconds in times.items():
        print(f"{name:>12}: {1e3 * seconds:9.3f} ms")


measure()

# %% [markdown]
# On a GPU both times are mostly the time that it takes to launch anything at all; how to measure a kernel there is a matter of
# exercise 1.
#
# ## Part 4: where the two machines differ
#
# The interpreter carries a kernel out with NumPy, on the CPU. The kernel's text is the same, and nearly always so is what it
# computes. Here are three places where it is not. Run each cell and compare what it prints with what it says of the other machine.
#
# `tl.dot` is a matrix product of two tiles. On a GPU it runs on the matrix units. `product` multiplies two N x N matrices with it.


# %%
@triton.jit
def product(a_ptr, b_ptr, c_ptr, N: tl.constexpr):
    """c = a @ b, all N x N, in one program. Not right everywhere: see below."""
    i = tl.arange(0, N)
    tile = i[:, None] * N + i[None, :]  # row i begins N numbers after row i - 1
    c = tl.dot(tl.load(a_ptr + tile), tl.load(b_ptr + tile))
    tl.store(c_ptr + tile, c)


def multiply(kernel, a, b):
    """Launch `kernel` on two square matrices, and return the product, float32."""
    device = "cuda" if ON_GPU else "cpu"
    c = torch.full(a.shape, float("nan"), device=device)
    kernel[(1,)](a.to(device), b.to(device), c, N=len(a))
    return c.cpu()


# %% [markdown]
# ### bfloat16
#
# bfloat16 is the upper half of a float32: the same range, 7 bits of mantissa behind the point in place of 23. NumPy does not have
# it. The interpreter keeps such a number as the integer that its 16 bits spell, and `tl.dot` multiplies those integers.

# %%
if HAS_TRITON:
    ones = torch.ones(16, 16, dtype=torch.bfloat16)
    bits = ones[0, 0].view(torch.int16).item()
    print("16 times 1 * 1, summed:  a GPU gives 16")
    print("here it is              ", multiply(product, ones, ones)[0, 0].item())
    print(f"the bits of 1.0 spell {bits}; 16 * {bits} * {bits} = {16 * bits * bits:.6g}")

# %% [markdown]
# ### TF32
#
# For float32 a GPU has a choice. Its matrix units know a format with the range of float32 and 10 of its 23 bits behind the point,
# TF32, and unless it is told otherwise `tl.dot` takes it: it is many times faster. `input_precision="ieee"` asks for float32.
# The interpreter computes in float32 either way.

# %%
if HAS_TRITON:
    a = torch.eye(16) * (1 + 2**-12)  # needs 12 bits behind the point
    print("(1 + 2^-12) * 1 is      ", 1 + 2**-12, " in float32;  TF32 gives 1.0")
    print("here it is              ", multiply(product, a, torch.eye(16))[0, 0].item())

# %% [markdown]
# ### Inline assembly
#
# A kernel may contain an instruction of the GPU itself. `ex2.approx.f32` is the one that computes $2^x$. The interpreter knows no such
# instruction, so kernels that use one can be tried on a GPU alone. The course's kernels use none.

# %%
if HAS_TRITON:

    @triton.jit
    def power_of_two(x_ptr, out_ptr, N: tl.constexpr):
        i = tl.arange(0, N)
        x = tl.load(x_ptr + i)
        code: tl.constexpr = "ex2.approx.f32 $0, $1;"
        y = tl.inline_asm_elementwise(code, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
        tl.store(out_ptr + i, y)

    x = torch.arange(4, dtype=torch.float32, device="cuda" if ON_GPU else "cpu")
    out = torch.empty_like(x)
    print("2^0, 2^1, 2^2, 2^3:      a GPU gives 1, 2, 4, 8")
    try:
        power_of_two[(1,)](x, out, N=4)
        print("here it is              ", out.tolist())
    except Exception as error:
        print("here it is              ", error)

# %% [markdown]
# ### A product that is right on both
#
# Write `dot_kernel`: it does what `product` was meant to do, for float32, float16 and bfloat16, on either machine. Start from
# `product`; two small changes do. You can try it on this machine alone, but think of the other one: the grader may have it. In the
# interpreter `00.dot.float32` is green without `input_precision` as well (its first case says so); on a GPU it then fails.
#
# ```text
# a_ptr, b_ptr   N x N      row by row; float32, float16 or bfloat16, both of one type
# c_ptr          N x N      float32: a @ b, neither rounded to TF32 nor to the type of a and b
# grid           1          one program
# N              constexpr  a power of two, at least 16
# ```
#
# Common mistakes: `a * b`, which multiplies element by element; and `.to` behind the pointer, where it belongs behind `tl.load(...)`.
#
# <details><summary>A nudge</summary>
# Every bfloat16 and every float16 is also a float32. In which type must the numbers be when tl.dot gets them?
# </details>
# <details><summary>The idea</summary>
# x.to(tl.float32) converts a tile, on either machine. And on a GPU, tl.dot of float32 tiles must be told not to take TF32.
# </details>


# %% nbgrader={"grade": false, "grade_id": "solution-dot", "locked": false, "schema_version": 3, "solution": true, "task": false}
@triton.jit
def dot_kernel(a_ptr, b_ptr, c_ptr, N: tl.constexpr):
    """c = a @ b in float32, all N x N, in one program."""
    i = tl.arange(0, N)
    tile = i[:, None] * N + i[None, :]
    ### BEGIN SOLUTION
    a = tl.load(a_ptr + tile).to(tl.float32)
    b = tl.load(b_ptr + tile).to(tl.float32)
    tl.store(c_ptr + tile, tl.dot(a, b, input_precision="ieee"))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "check-00-dot-float32", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("00.dot.float32", dot_kernel)

# %% nbgrader={"grade": true, "grade_id": "check-00-dot-bfloat16", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("00.dot.bfloat16", dot_kernel)

# %% [markdown]
# ## What you can now do
#
# You can read a check from the case to the element to the hint, tell a missing tile from a rounded sum by the pattern of what
# fails, write a kernel whose last block is short, and say what the interpreter does not tell you about a GPU. The next exercise counts
# bytes.

# %% [markdown]
# ## Hand in
#
# Save the notebook (Ctrl+S, or Cmd+S), then run this cell. It reads the saved file as the grader will, says what is missing,
# and packs it; upload the file that it names. It runs none of your code, and you may hand in as often as you like: the newest
# counts. Where the upload does not know who you are, write `handin(student="your id")`.

# %%
from autograder import handin

handin()
