"""Compile kernels for cards that are not here, as the host code would launch them, and print what they need.

    python tests/kernels/compile_kernels.py [--all [CARD ...]]

Not a test itself: Triton must be imported without TRITON_INTERPRET, so `test_compile.py` runs it in a process of
its own. The public functions are called with CPU tensors while the questions that they ask of a card are
answered for it: tiles are chosen, arguments specialised and kernels compiled to machine code as on that card;
the launch alone is left out. One line of JSON a kernel: card, kernel, tiles, and shared memory needed and there
is, in bytes.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget

sys.path.insert(0, str(Path(__file__).parents[2]))

from kernels.triton import host, score_mods  # noqa: E402
from kernels.triton.attention import flash_attention, fp8_attention, packed_attention  # noqa: E402
from kernels.triton.decode import flash_decoding, paged_attention  # noqa: E402
from kernels.triton.merge import merge  # noqa: E402

# Compute capability: bytes of shared memory that one block may have (CUDA C++ Programming Guide, table of technical
# specifications).
CARDS = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024}


class Driver:
    """What Triton asks of a CUDA driver before a launch."""

    def __init__(self, capability):
        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return self.target.arch

    def get_current_stream(self, device):
        return 0

    def get_active_torch_device(self):
        return torch.device("cpu")


def compile_for(capability, calls):
    """Run each call on a card of this capability and yield what the kernels that it compiles need."""
    found = []
    run = triton.runtime.JITFunction.run

    def compile_only(self, *args, grid, warmup, **options):
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        tiles = {n: x for n, x in options.items() if n in ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")}
        found.append(
            {"card": capability, "kernel": self.__name__, "tiles": tiles, "shared": kernel.metadata.shared,
             "limit": CARDS[capability]}
        )  # fmt: skip
        return kernel

    triton.runtime.driver.set_active(Driver(capability))
    triton.runtime.JITFunction.run = compile_only
    host.runs_on = lambda kernel, device: True
    host.shared_memory = lambda device: CARDS[capability]
    host.converts_fp8 = lambda device: capability >= 89
    host.is_hopper = lambda device: capability == 90
    host.has_boxes = host.starts_early = lambda device: capability >= 90
    host.multiprocessors = lambda device: 80
    try:
        for call in calls:
            found.clear()
            call()
            yield from found
    finally:
        triton.runtime.JITFunction.run = run


def dense(dim, v_dim=None, dtype=torch.float16, backward=True, **options):
    """Forward, and backward unless there is a score_mod."""

    def call():
        q, k = torch.zeros(1, 4, 300, dim, dtype=dtype), torch.zeros(1, 2, 300, dim, dtype=dtype)
        v = torch.zeros(1, 2, 300, v_dim or dim, dtype=dtype)
        wanted = backward and options.get("score_mod") is None
        o, _ = flash_attention(*(x.requires_grad_(wanted) for x in (q, k, v)), **options)
        if wanted:
            o.backward(torch.zeros_like(o))

    return call


def fp8_forward(dim):
    def call():
        x = torch.zeros(1, 2, 300, dim).to(host.FP8)
        fp8_attention(x, x, x, causal=True)

    return call


def packed(dim, dtype=torch.float16):
    def call():
        q = torch.zeros(300, 4, dim, dtype=dtype, requires_grad=True)
        o, _ = packed_attention(q, q, q, [0, 300], [0, 300], causal=True)
        o.backward(torch.zeros_like(o))

    return call


def decoding(dim, v_dim=None, dtype=torch.bfloat16, cache=None, page=16, group=8, **options):
    """Paged, or dense where page is None."""

    def call():
        q = torch.zeros(2, 2 * group, 1, dim, dtype=dtype)
        if page is None:
            k = torch.zeros(2, 2, 300, dim, dtype=dtype)
            flash_decoding(q, k, k, **options)
        else:
            k, v = (torch.zeros(9, page, 2, n, dtype=dtype).to(cache or dtype) for n in (dim, v_dim or dim))
            paged_attention(q, k, v, torch.zeros(2, 4, dtype=torch.int32), [page, page], **options)

    return call


def merging(dim, dtype=torch.bfloat16):
    def call():
        o, lse = torch.zeros(2, 2, 9, dim, dtype=dtype), torch.zeros(2, 2, 9)
        merge(o, lse, o, lse)

    return call


FEW = {
    80: [decoding(128, cache=host.FP8, k_descale=0.5, splits=2)],
    86: [dense(128, causal=True)],
    89: [decoding(64)],
    90: [dense(128, causal=True, window=100, backward=False), dense(128, causal=True, backward=False)],
}
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MANY = [
    *[dense(dim, dtype=dtype, causal=True) for dtype in DTYPES for dim in (64, 128, 256)],
    *[dense(dim, dtype=torch.bfloat16) for dim in (40, 64, 80, 96)],
    dense(192, 128), dense(33, 7), dense(128, causal=True, window=100), packed(64), packed(128),
    dense(128, causal=True, score_mod=score_mods.softcap, aux=50.0),
    dense(64, score_mod=score_mods.alibi, aux=score_mods.sloped(torch.zeros(4))),
    dense(64, score_mod=score_mods.bias, aux=score_mods.indexed(torch.zeros(1, 4, 300, 300))),
    dense(256, score_mod=score_mods.custom_mask, aux=score_mods.indexed(torch.zeros(1, 4, 300, 300, dtype=torch.bool))),
    *[decoding(dim, dtype=dtype) for dtype in DTYPES for dim in (64, 128, 256)],
    *[decoding(dim, cache=host.FP8) for dim in (64, 128, 256)],
    decoding(192, 128, page=544), decoding(128, page=1, group=5), decoding(128, page=None), decoding(128, group=48),
    decoding(128, window=100), decoding(128, score_mod=score_mods.softcap, aux=50.0),
    fp8_forward(64), fp8_forward(256), merging(64), merging(256), merging(100, torch.float32),
]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--all", type=int, nargs="*", choices=CARDS, metavar="CARD",
        help="every configuration, for these cards (such as 80 90) or for all: a few minutes each",
    )  # fmt: skip
    cards = parser.parse_args().all
    for capability, calls in (FEW if cards is None else {card: MANY for card in cards or CARDS}).items():
        for result in compile_for(capability, calls):
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
