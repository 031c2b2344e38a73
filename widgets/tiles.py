"""The tiles simulator: tiles of Q against tiles of K and V, with the loops nested either way, and what each order moves.

`count` is the arithmetic; `tiles.js` holds the same, and `tests/site/test_tiles.py` compares them. A *visit* is one
meeting of a tile of queries with a tile of keys. Both orders make the same visits, each in its own sequence, and both
are counted by the same rule: whatever a visit needs and does not find on chip crosses from HBM, whatever has to survive
and cannot stay crosses back. One head; no cache is counted.
"""

from __future__ import annotations

from pathlib import Path

import traitlets

from widgets.base import Setting, Widget, checked_choice, checked_int, size, style
from widgets.cards import CARDS
from widgets.roofline import ACCUMULATOR, DTYPES, HEAD_DIMS

HERE = Path(__file__).parent

LENGTHS = (512, 1024, 2048, 4096, 8192)  # multiples of every tile, so that none hangs over the end
TILES = (16, 32, 64, 128, 256)
STAGES = (1, 2, 3, 4)
RESERVED = 1024  # bytes of shared memory that CUDA keeps for itself in every thread block
ORDERS = ("queries", "keys")  # which loop is outside
PARTS = ("q", "kv", "state", "o")
MOST_VISITS = (LENGTHS[-1] // TILES[0]) ** 2


def count(
    n=1024, head_dim=128, dtype="fp16", tile_q=128, tile_k=128, stages=2, card="H100", position=0
) -> dict:
    """What both loop orders have moved after `position` visits (all of them, if that is more), and what they need.

    Queries outside: a tile of Q stays, tiles of K and V stream past it, `stages` pairs at a time; the state stays in
    registers, and o and lse are written once. Keys outside: a pair of K and V stays, tiles of Q stream past it, and
    with each of them the state of its queries: read back unless it is still empty, written unless it is finished.
    m, l, o and lse are float32 numbers, the output has the dtype of the inputs.

    Returns `rows`, `columns`, `visits`: tiles of queries, of keys, and their product. `position`: visits counted.
    `once`: bytes if every array crossed once. `registers`: bytes for the scores and o of one thread block;
    `registers_fit`: whether a multiprocessor has them. For each of `ORDERS`: `moved`: bytes so far, for each of
    `PARTS` ("q"; "kv"; "state", both ways; "o", with lse); `bytes`: their sum; `total`: the sum after all visits;
    `intensity`: FLOP of both products per byte of that total. `shared`: bytes of shared memory for the tiles; `fits`:
    whether a thread block can have them; `blocks`: thread blocks that a multiprocessor holds at most, by both budgets.
    `programs`: thread blocks that can work on one head without waiting for each other. `i`, `j`: tiles of queries and
    of keys of the last visit, from 0, or -1 before the first; `loads`, `stores`: the parts that it moved;
    `unfinished`, `finished`: tiles of queries whose state, or whose output, lies in HBM.
    """
    element = DTYPES[dtype][1]
    own = CARDS[card]
    rows, columns = n // tile_q, n // tile_k
    visits = rows * columns
    position = min(position, visits)
    array = n * head_dim * element
    q_tile, kv_tile = tile_q * head_dim * element, 2 * tile_k * head_dim * element
    state_tile = tile_q * (head_dim + 2) * ACCUMULATOR
    o_tile = q_tile + tile_q * ACCUMULATOR
    registers = (tile_q * tile_k + tile_q * head_dim) * ACCUMULATOR

    def queries_outside(k):
        return {"q": -(-k // columns) * q_tile, "kv": k * kv_tile, "state": 0, "o": k // columns * o_tile}

    def keys_outside(k):
        last = visits - rows  # visits before the last tile of keys
        read, written = max(0, k - rows), min(k, last)
        return {
            "q": k * q_tile,
            "kv": -(-k // rows) * kv_tile,
            "state": (read + written) * state_tile,
            "o": max(0, k - last) * o_tile,
        }

    def order(walk, shared, programs, i, j, loads, stores, unfinished, finished):
        moved, total = walk(position), sum(walk(visits).values())
        blocks = min(own.shared_bytes_each // (shared + RESERVED), own.register_bytes_each // registers)
        fits = shared <= own.shared_bytes_block
        return {
            "moved": moved,
            "bytes": sum(moved.values()),
            "total": total,
            "intensity": 4 * n * n * head_dim / total,
            "shared": shared,
            "fits": fits,
            "blocks": blocks if fits else 0,
            "programs": programs,
            "i": i,
            "j": j,
            "loads": loads if position else [],
            "stores": stores if position else [],
            "unfinished": unfinished,
            "finished": finished,
        }

    i, j = divmod(position - 1, columns) if position else (-1, -1)
    queries = order(
        queries_outside,
        q_tile + stages * kv_tile,
        rows,
        i,
        j,
        ["q", "kv"] if j == 0 else ["kv"],
        ["o"] if j == columns - 1 else [],
        0,
        position // columns,
    )
    j, i = divmod(position - 1, rows) if position else (-1, -1)
    finished = max(0, position - (visits - rows))
    keys = order(
        keys_outside,
        kv_tile + stages * q_tile,
        1,
        i,
        j,
        ["q"] + ["kv"] * (i == 0) + ["state"] * (j > 0),
        ["o"] if j == columns - 1 else ["state"],
        min(position, rows) - finished,
        finished,
    )
    return {
        "rows": rows,
        "columns": columns,
        "visits": visits,
        "position": position,
        "once": 4 * array + n * ACCUMULATOR,
        "registers": registers,
        "registers_fit": registers <= own.register_bytes_each,
        "queries": queries,
        "keys": keys,
    }


class Tiles(Widget):
    """Walk over the tiles of one attention head, with the queries in the outer loop and with the keys there.

    n: tokens, 512 to 8,192, a power of two.  head_dim: 32, 64, 128 or 256.  dtype: "fp16" (bf16 counts the same) or
    "fp32".  tile_q, tile_k: queries and keys in a tile, 16 to 256, powers of two.
    stages: streamed tiles in shared memory at a time, 1 to 4.  card: "A100", "H100" or "H200".
    position: visits already made when it opens.

    All of these are live traits, and `count` gives the numbers for them. Raises `ValueError` for a bad argument or a
    bad assignment.
    """

    _esm = HERE / "tiles.js"
    _css = style("tiles.css")

    n = Setting(1024, checked_choice, LENGTHS)
    head_dim = Setting(128, checked_choice, HEAD_DIMS)
    dtype = Setting("fp16", checked_choice, DTYPES)
    tile_q = Setting(128, checked_choice, TILES)
    tile_k = Setting(128, checked_choice, TILES)
    stages = Setting(2, checked_choice, STAGES)
    card = Setting("H100", checked_choice, CARDS)
    position = Setting(20, checked_int, 0, MOST_VISITS)
    options = traitlets.Dict().tag(sync=True)  # what there is to choose from, for the front end

    def __init__(
        self,
        n=1024,
        head_dim=128,
        dtype="fp16",
        tile_q=128,
        tile_k=128,
        *,
        stages=2,
        card="H100",
        position=20,
    ):
        super().__init__(
            n=n,
            head_dim=head_dim,
            dtype=dtype,
            tile_q=tile_q,
            tile_k=tile_k,
            stages=stages,
            card=card,
            position=position,
            options={
                "lengths": LENGTHS,
                "head_dims": HEAD_DIMS,
                "tiles": TILES,
                "stages": STAGES,
                "reserved": RESERVED,
                "accumulator": ACCUMULATOR,
                "dtypes": {name: {"label": label, "bytes": own} for name, (label, own, _) in DTYPES.items()},
                "cards": {name: own._asdict() for name, own in CARDS.items()},
            },
        )

    @property
    def count(self) -> dict:
        """`count` of the present choice."""
        return count(
            self.n, self.head_dim, self.dtype, self.tile_q, self.tile_k, self.stages, self.card, self.position
        )

    def fallback(self) -> str:
        """Both orders for several pairs of tiles, as HTML: what the simulator shows at the end of each walk."""
        lines = []
        for tile_q, tile_k in ((128, 128), (128, 64), (128, 32), (64, 128), (64, 64), (32, 128)):
            own = count(self.n, self.head_dim, self.dtype, tile_q, tile_k, self.stages, self.card)
            cells = [size(own[order]["total"]) for order in ORDERS]
            cells += [
                size(own[order]["shared"]) + ("" if own[order]["fits"] else " ⚠ too much") for order in ORDERS
            ]
            lines.append(
                f'<tr><th scope="row">{tile_q} × {tile_k}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
            )
        head = ("queries × keys", "moved, queries outside", "moved, keys outside",
                "shared memory, queries outside", "shared memory, keys outside")  # fmt: skip
        columns = "".join(f"<th scope='col'>{cell}</th>" for cell in head)
        own = CARDS[self.card]
        once = size(self.count["once"])
        return (
            f"<table><caption>One head of {self.n:,} tokens, head size {self.head_dim}, {DTYPES[self.dtype][0]}, "
            f"{self.stages} stages, on an {own.name}, whose thread blocks can have {size(own.shared_bytes_block)} of shared "
            f"memory. Bytes between HBM and the chip, for several tiles; every array once would be {once}.</caption>"
            f"<thead><tr>{columns}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
        )
