"""The roofline simulator: what attention moves, in the standard form and in the flash form, and how long that takes.

`costs` is the arithmetic; `roofline.js` holds the same, and `tests/site/test_roofline.py` compares them. Both count
what the page of chapter 1 explains: matrix products alone for operations, whole arrays for traffic, published rates.
"""

from __future__ import annotations

from pathlib import Path

import traitlets

from widgets.base import Setting, Widget, checked_bool, checked_choice, checked_int, size, style
from widgets.cards import CARDS, Card

HERE = Path(__file__).parent

LENGTHS = (64, 2**20)
HEADS = (1, 256)
HEAD_DIMS = (32, 64, 128, 256)
TILES = (256, 128, 64, 32, 16)  # a kernel's tiles are powers of two, and the matrix units want 16 at least
STAGES = 2  # tiles of K and V in shared memory: one is used while the next one arrives
ACCUMULATOR = 4  # bytes of a float32, in which scores and outputs are kept
MOVES = 6  # of the standard form: three kernels, each of which reads and writes
# name -> (label, bytes of a number, the field of `Card` with the rate of its products)
DTYPES = {
    "fp16": ("fp16 or bf16", 2, "matrix_rate"),
    "fp32": ("fp32, not TF32", 4, "float32_rate"),
}


def tile_needs(tile: int, head_dim: int, element: int) -> tuple[int, int]:
    """Bytes of (shared memory, registers) for tile x tile scores: tiles of Q, K and V; scores and outputs."""
    shared = (1 + 2 * STAGES) * tile * head_dim * element
    registers = (tile * tile + tile * head_dim) * ACCUMULATOR
    return shared, registers


def largest_tile(head_dim: int, element: int, card: Card) -> int:
    """The largest tile of `TILES` that one thread block can hold in shared memory and registers."""

    def fits(tile):
        shared, registers = tile_needs(tile, head_dim, element)
        return shared <= card.shared_bytes_block and registers <= card.register_bytes_each

    return next(filter(fits, TILES))


def costs(n=8192, heads=32, head_dim=128, dtype="fp16", card="H100", l2=True) -> dict:
    """What attention of `n` queries over `n` keys costs on a card, one layer of one request.

    l2: whether the L2 cache serves what a kernel reads more than once, so that HBM sees each array once a kernel.

    Returns bytes, seconds and floating-point operations (`flop`: the two matrix products, a multiply and an add
    counting as two). `score_head`, `score_all`: S of one head, of all. `input_all`: Q (or K, V, O) of all heads.
    `kv_head`: K and V of one head. `rate`: the card's for this dtype. `ridge`: FLOP per byte at which traffic and
    arithmetic take equally long. `tile`, `shared`, `registers`: the largest tile, and what it needs. For each form,
    `standard` and `flash`: `bytes` through HBM; `held` in HBM at once; `intensity`, FLOP per byte;
    `memory_seconds` and `arithmetic_seconds`, each alone; `seconds`, the least time: kernels run one after another, and
    each takes the longer of its two; `limit`: "memory", "arithmetic" or "both in turn"; `moved`: bytes after each of
    `MOVES` + 1 positions. For flash `done`: the tiles of queries finished at each position, of `visits`.
    """
    _, element, rate_name = DTYPES[dtype]
    card = CARDS[card]
    rate = getattr(card, rate_name)
    array, matrix = heads * n * head_dim * element, heads * n * n * element
    product = 2 * heads * n * n * head_dim
    tile = largest_tile(head_dim, element, card)
    shared, registers = tile_needs(tile, head_dim, element)
    visits = -(-n // tile)
    repeats = 1 if l2 else visits  # how often a kernel fetches from HBM what each tile of queries reads

    # Kernels as (operations, bytes read, bytes written).
    standard = [
        (product, 2 * repeats * array, matrix),  # S = Q K^T: without L2, Q again for each tile of keys
        (0, matrix, matrix),  # P = softmax(S)
        (product, matrix + repeats * array, array),  # O = P V
    ]
    flash = [(2 * product, array + 2 * repeats * array, array)]

    moved = [0]
    for _, read, written in standard:
        moved += [moved[-1] + read, moved[-1] + read + written]

    # Flash does a sixth of its tiles of queries while the standard form makes one of its moves.
    done = [-(-position * visits // MOVES) for position in range(MOVES + 1)]
    rows = [min(n, tiles * tile) for tiles in done]
    row = heads * head_dim * element
    streamed = [
        2 * row * seen + 2 * array * ((tiles > 0) if l2 else tiles)  # rows of Q and O; K and V
        for seen, tiles in zip(rows, done, strict=True)
    ]

    def form(kernels, moved, held):
        bytes_ = sum(read + written for _, read, written in kernels)
        times = [((read + written) / card.hbm_rate, flop / rate) for flop, read, written in kernels]
        limits = {"memory" if memory > arithmetic else "arithmetic" for memory, arithmetic in times}
        return {
            "bytes": bytes_,
            "held": held,
            "intensity": 2 * product / bytes_,
            "memory_seconds": bytes_ / card.hbm_rate,
            "arithmetic_seconds": 2 * product / rate,
            "seconds": sum(map(max, times)),
            "limit": limits.pop() if len(limits) == 1 else "both in turn",
            "moved": moved,
        }

    return {
        "score_head": n * n * element,
        "score_all": matrix,
        "input_all": array,
        "kv_head": 2 * n * head_dim * element,
        "flop": 2 * product,
        "rate": rate,
        "ridge": rate / card.hbm_rate,
        "tile": tile,
        "shared": shared,
        "registers": registers,
        "visits": visits,
        "done": done,
        "standard": form(standard, moved, 4 * array + 2 * matrix),
        "flash": form(flash, streamed, 4 * array),
    }


class Roofline(Widget):
    """Choose a shape and a card; see what both forms of attention move, hold and take at least.

    n: tokens, 64 to 1,048,576.  heads: 1 to 256.  head_dim: 32, 64, 128 or 256.
    dtype: "fp16" (bf16 counts the same) or "fp32" (outside the matrix units).
    card: "A100", "H100" or "H200".
    l2: whether the L2 cache serves repeated reads.
    position: moves of the standard form already made when it opens, 0 to 6.

    All of these are live traits, and `costs` gives the numbers for them. Raises `ValueError` for a bad argument or a
    bad assignment.
    """

    _esm = HERE / "roofline.js"
    _css = style("roofline.css")

    n = Setting(8192, checked_int, *LENGTHS)
    heads = Setting(32, checked_int, *HEADS)
    head_dim = Setting(128, checked_choice, HEAD_DIMS)
    dtype = Setting("fp16", checked_choice, DTYPES)
    card = Setting("H100", checked_choice, CARDS)
    l2 = Setting(True, checked_bool)
    position = Setting(2, checked_int, 0, MOVES)
    options = traitlets.Dict().tag(sync=True)  # what there is to choose from, for the front end

    def __init__(self, n=8192, heads=32, head_dim=128, dtype="fp16", card="H100", l2=True, *, position=2):
        super().__init__(
            n=n,
            heads=heads,
            head_dim=head_dim,
            dtype=dtype,
            card=card,
            l2=l2,
            position=position,
            options={
                "lengths": LENGTHS,
                "heads": HEADS,
                "head_dims": HEAD_DIMS,
                "tiles": TILES,
                "stages": STAGES,
                "accumulator": ACCUMULATOR,
                "dtypes": {
                    name: {"label": label, "bytes": bytes_, "rate": rate}
                    for name, (label, bytes_, rate) in DTYPES.items()
                },
                "cards": {name: own._asdict() for name, own in CARDS.items()},
            },
        )

    @property
    def costs(self) -> dict:
        """`costs` of the present choice."""
        return costs(self.n, self.heads, self.head_dim, self.dtype, self.card, self.l2)

    def fallback(self) -> str:
        """The two forms side by side for several lengths, as HTML: what the simulator shows, without the picture."""
        rows = []
        for n in (512, 2048, 8192, 32768, 131072):
            own = costs(n, self.heads, self.head_dim, self.dtype, self.card, self.l2)
            cells = [size(own["score_head"]), size(own["score_all"])]
            for form in ("standard", "flash"):
                part = own[form]
                cells += [size(part["bytes"]), f"{1e3 * part['seconds']:.3g} ms ({part['limit']})"]
            rows.append(f'<tr><th scope="row">{n:,}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>')
        head = ("N", "S of one head", "S of all heads", "standard: HBM traffic", "standard: least time (limit)",
                "flash: HBM traffic", "flash: least time (limit)")  # fmt: skip
        columns = "".join(f"<th scope='col'>{cell}</th>" for cell in head)
        tile = self.costs["tile"]
        return (
            f"<table><caption>{self.heads} heads of {self.head_dim}, {DTYPES[self.dtype][0]}, on an "
            f"{CARDS[self.card].name}. The largest tile that fits on chip: {tile} × {tile} scores.</caption>"
            f"<thead><tr>{columns}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
        )
