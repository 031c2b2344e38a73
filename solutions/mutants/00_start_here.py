"""Wrong solutions of exercise 00, and the checks that each must fail.

The matrix was written by hand before any of them ran; tests/solutions holds the code to it. Every check has one that fails it
alone: 00.scores `scale-forgotten`, 00.mend.tiles `tail-dropped`, 00.mend.precision `sum-in-float32`, 00.add.tails
`store-unmasked`, 00.dot.float32 `dot-tf32` (on a GPU), 00.dot.bfloat16 `dot-rounded`. What fails 00.add.full can't fail it alone,
since 00.add.tails needs it: `one-block` fails both.
"""

from autograder.exercise import Mutant

# check -> the cells whose code it runs.
RUNS = {
    "00.scores": {"solution-scores"},
    "00.mend.tiles": {"solution-mend"},
    "00.mend.precision": {"solution-mend"},
    "00.add.full": {"solution-add"},
    "00.add.tails": {"solution-add"},
    "00.dot.float32": {"solution-dot"},
    "00.dot.bfloat16": {"solution-dot"},
}

SCORES = frozenset({"00.scores"})
MEND = frozenset({"00.mend.tiles", "00.mend.precision"})
ADD = frozenset({"00.add.full", "00.add.tails"})
DOT = frozenset({"00.dot.float32", "00.dot.bfloat16"})
NOTHING = frozenset()

LOOP = "for start in range(0, len(v), tile):"
ZEROS = "total = np.zeros((len(w), v.shape[1]))"
PLACES = "places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)"
STORE = "tl.store(out_ptr + places, x + y, mask=places < n)"
LOAD_A = "a = tl.load(a_ptr + tile).to(tl.float32)"
LOAD_B = "b = tl.load(b_ptr + tile).to(tl.float32)"
DOTTED = 'tl.dot(a, b, input_precision="ieee")'

MUTANTS = [
    Mutant(
        "scale-forgotten",
        "the products are not divided by the square root of d",
        (("solution-scores", " / np.sqrt(q.shape[1])", ""),),
        SCORES,
        hint={"00.scores": "scale"},
    ),
    Mutant(
        "scale-of-d",
        "the products are divided by d",
        (("solution-scores", "np.sqrt(q.shape[1])", "q.shape[1]"),),
        SCORES,
        hint={"00.scores": "scale_d"},
    ),
    Mutant(
        "keys-by-queries",
        "rows belong to keys and columns to queries",
        (("solution-scores", "q @ k.T", "k @ q.T"),),
        SCORES,
        hint={"00.scores": "transposed"},
    ),
    Mutant(
        "caller-changed",
        "the scores are right, but q is divided in place",
        (
            (
                "solution-scores",
                "return q @ k.T / np.sqrt(q.shape[1])",
                "q /= np.sqrt(q.shape[1])\n    return q @ k.T",
            ),
        ),
        SCORES,
    ),
    Mutant(
        "tail-dropped",
        "the loop stops after the last whole tile",
        (("solution-mend", LOOP, "for start in range(0, len(v) - tile + 1, tile):"),),
        frozenset({"00.mend.tiles"}),
        hint={"00.mend.tiles": "dropped"},
    ),
    Mutant(
        "last-tile-moved-back",
        "the last tile is whole and begins inside the one before it",
        (("solution-mend", LOOP, LOOP + "\n        start = max(min(start, len(v) - tile), 0)"),),
        frozenset({"00.mend.tiles"}),
        hint={"00.mend.tiles": "twice"},
    ),
    Mutant(
        "sum-in-float32",
        "the sum is kept in float32",
        (("solution-mend", ZEROS, ZEROS.replace("v.shape[1])", "v.shape[1]), np.float32")),),
        frozenset({"00.mend.precision"}),
        hint={"00.mend.precision": "single"},
    ),
    Mutant(
        "as-it-was-given",
        "neither bug is mended",
        (
            ("solution-mend", LOOP, "for start in range(0, len(v) - tile + 1, tile):"),
            ("solution-mend", ZEROS, ZEROS.replace("v.shape[1])", "v.shape[1]), np.float32")),
        ),
        MEND,
        hint={"00.mend.tiles": "dropped", "00.mend.precision": "single"},
    ),
    Mutant(
        "tiles-not-added",
        "each tile replaces the one before it",
        (("solution-mend", "total +=", "total ="),),
        MEND,
        hint={"00.mend.tiles": "last_only", "00.mend.precision": "last_only"},
    ),
    Mutant(
        "one-block",
        "every program works on the first block",
        (("solution-add", PLACES, "places = tl.arange(0, BLOCK)"),),
        ADD,
        hint={"00.add.full": "one_block", "00.add.tails": "one_block"},
    ),
    Mutant(
        "blocks-overlap",
        "the blocks begin one place apart",
        (("solution-add", "tl.program_id(0) * BLOCK", "tl.program_id(0)"),),
        ADD,
        hint={"00.add.full": "overlap"},
    ),
    Mutant(
        "y-not-added",
        "out is a copy of x",
        (("solution-add", STORE, STORE.replace("x + y", "x")),),
        ADD,
        hint={"00.add.full": "one_input", "00.add.tails": "one_input"},
    ),
    Mutant(
        "store-unmasked",
        "the last block is stored whole, behind the end of out",
        (("solution-add", STORE, "tl.store(out_ptr + places, x + y)"),),
        frozenset({"00.add.tails"}),
    ),
    Mutant(
        "mask-one-too-many",
        "the place behind the last one is stored as well",
        (("solution-add", STORE, STORE.replace("places < n", "places <= n")),),
        frozenset({"00.add.tails"}),
    ),
    Mutant(
        "dot-raw-bits",
        "the type is left as it is, which is right on a GPU alone",
        (
            ("solution-dot", LOAD_A, LOAD_A.replace(".to(tl.float32)", "")),
            ("solution-dot", LOAD_B, LOAD_B.replace(".to(tl.float32)", "")),
        ),
        frozenset({"00.dot.bfloat16"}),
        NOTHING,
        hint={"00.dot.bfloat16": "raw_bits"},
    ),
    Mutant(
        "dot-tf32",
        "the product is rounded to TF32 where the GPU has it",
        (("solution-dot", DOTTED, "tl.dot(a, b)"),),
        NOTHING,
        frozenset({"00.dot.float32"}),
        hint={"00.dot.float32": "ten_bits"},
    ),
    Mutant(
        "dot-in-float16",
        "the numbers are converted to float16, which holds neither their digits nor their size",
        (
            ("solution-dot", LOAD_A, LOAD_A.replace("float32", "float16")),
            ("solution-dot", LOAD_B, LOAD_B.replace("float32", "float16")),
        ),
        DOT,
        hint={"00.dot.float32": "ten_bits", "00.dot.bfloat16": "ten_bits"},
    ),
    Mutant(
        "dot-rounded",
        "the product is rounded to the type of a and b",
        (
            ("solution-dot", LOAD_A, LOAD_A + "\n    narrow = tl.load(a_ptr + tile).dtype"),
            ("solution-dot", DOTTED, DOTTED + ".to(narrow).to(tl.float32)"),
        ),
        frozenset({"00.dot.bfloat16"}),
        hint={"00.dot.bfloat16": "rounded"},
    ),
    Mutant(
        "product-by-element",
        "each number of a is multiplied by that of b at its place",
        (("solution-dot", DOTTED, "a * b"),),
        DOT,
        hint={"00.dot.float32": "by_element", "00.dot.bfloat16": "by_element"},
    ),
    Mutant(
        "b-by-columns",
        "b is multiplied as if its columns were its rows",
        (("solution-dot", DOTTED, 'tl.dot(a, tl.trans(b), input_precision="ieee")'),),
        DOT,
        hint={"00.dot.float32": "b_transposed", "00.dot.bfloat16": "b_transposed"},
    ),
]
