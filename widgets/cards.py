"""What vendors and papers publish about three cards: the only place in the course where these numbers are written.

Sources, as keys of `chapters/references.bib`: `nvidia_a100`, `nvidia_h100`, `nvidia_h200` for memory size, memory
rate, multiprocessors, arithmetic rates and the link to the host; `nvidia_ampere` and `nvidia_hopper` for registers
and shared memory; `dao2022` for the A100's shared-memory rate and `shah2024` for the H100's shared-memory and L2
rates. The A100's shared-memory rate is its source's estimate. The other published rates are upper limits; a measured
rate is lower.
"""

from __future__ import annotations

from typing import NamedTuple


class Card(NamedTuple):
    """One card. Sizes in bytes, rates in bytes or floating-point operations per second."""

    name: str
    multiprocessors: int
    register_bytes_each: float  # of one multiprocessor
    shared_bytes_each: float  # what one multiprocessor can give to shared memory
    shared_bytes_block: float  # what one thread block can get: CUDA keeps 1 KiB of it for itself
    shared_rate: float  # all multiprocessors together
    l2_bytes: float
    l2_rate: float | None  # None where no rate was found in print
    hbm_bytes: float
    hbm_rate: float
    host_rate: float  # to or from the host's memory, one direction
    matrix_rate: float  # matrix units, dense, bf16 or fp16
    float32_rate: float  # outside the matrix units


KIB, MIB = 2**10, 2**20
TERA, GIGA = 1e12, 1e9

CARDS = {
    "A100": Card(
        name="A100 SXM 40 GB",
        multiprocessors=108,
        register_bytes_each=256 * KIB,
        shared_bytes_each=164 * KIB,
        shared_bytes_block=163 * KIB,
        shared_rate=19 * TERA,
        l2_bytes=40 * MIB,
        l2_rate=None,
        hbm_bytes=40 * GIGA,
        hbm_rate=1.555 * TERA,
        host_rate=32 * GIGA,  # PCIe 4: 64 GB/s both ways together
        matrix_rate=312 * TERA,
        float32_rate=19.5 * TERA,
    ),
    "H100": Card(
        name="H100 SXM 80 GB",
        multiprocessors=132,
        register_bytes_each=256 * KIB,
        shared_bytes_each=228 * KIB,
        shared_bytes_block=227 * KIB,
        shared_rate=31 * TERA,
        l2_bytes=50 * MIB,
        l2_rate=12 * TERA,
        hbm_bytes=80 * GIGA,
        hbm_rate=3.35 * TERA,
        host_rate=64 * GIGA,  # PCIe 5: 128 GB/s both ways together
        matrix_rate=989 * TERA,
        float32_rate=67 * TERA,
    ),
    # The H200 is the H100's processor with other memory, so its on-chip figures are taken from the H100's sources.
    "H200": Card(
        name="H200 SXM 141 GB",
        multiprocessors=132,
        register_bytes_each=256 * KIB,
        shared_bytes_each=228 * KIB,
        shared_bytes_block=227 * KIB,
        shared_rate=31 * TERA,
        l2_bytes=50 * MIB,
        l2_rate=12 * TERA,
        hbm_bytes=141 * GIGA,
        hbm_rate=4.8 * TERA,
        host_rate=64 * GIGA,
        matrix_rate=989 * TERA,
        float32_rate=67 * TERA,
    ),
}
