"""What vendors and papers publish about three cards: the only place in the chapters where these numbers are written.

Sources, as keys of `chapters/references.bib`: `nvidia_a100`, `nvidia_h100`, `nvidia_h200` for memory size, memory
rate, multiprocessors and the dense matrix rate; `dao2022` for the A100's shared-memory rate and `shah2024` for the
H100's shared-memory and L2 rates. The A100's shared-memory rate
is its source's estimate. The other published rates are upper limits; a measured rate is lower.
"""

from __future__ import annotations

from typing import NamedTuple


class Card(NamedTuple):
    """One card. Rates in bytes per second, sizes in bytes, `matrix_rate` in FLOP per second (dense bf16 or fp16)."""

    name: str
    multiprocessors: int
    hbm_bytes: float
    hbm_rate: float
    l2_bytes: float
    shared_bytes_each: float  # what one multiprocessor can give to shared memory
    shared_rate: float | None  # all multiprocessors together; None where no rate was found in print
    l2_rate: float | None
    matrix_rate: float


KIB, MIB = 2**10, 2**20
TERA, GIGA = 1e12, 1e9

CARDS = {
    "A100": Card(
        name="A100 SXM 40 GB",
        multiprocessors=108,
        hbm_bytes=40 * GIGA,
        hbm_rate=1.555 * TERA,
        l2_bytes=40 * MIB,
        shared_bytes_each=164 * KIB,
        shared_rate=19 * TERA,
        l2_rate=None,
        matrix_rate=312 * TERA,
    ),
    "H100": Card(
        name="H100 SXM 80 GB",
        multiprocessors=132,
        hbm_bytes=80 * GIGA,
        hbm_rate=3.35 * TERA,
        l2_bytes=50 * MIB,
        shared_bytes_each=228 * KIB,
        shared_rate=31 * TERA,
        l2_rate=12 * TERA,
        matrix_rate=989 * TERA,
    ),
    # The H200 is the H100's processor with other memory, so its on-chip figures are taken from the H100's sources.
    "H200": Card(
        name="H200 SXM 141 GB",
        multiprocessors=132,
        hbm_bytes=141 * GIGA,
        hbm_rate=4.8 * TERA,
        l2_bytes=50 * MIB,
        shared_bytes_each=228 * KIB,
        shared_rate=31 * TERA,
        l2_rate=12 * TERA,
        matrix_rate=989 * TERA,
    ),
}
