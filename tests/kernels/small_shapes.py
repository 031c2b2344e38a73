"""Every kernel once on small, odd shapes: what `make test-gpu` runs under compute-sanitizer.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --error-exitcode 9 python tests/kernels/small_shapes.py

Without torch's cache of memory each tensor is an allocation of its own, so that a read past its end is seen.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from kernels.triton import host, score_mods  # noqa: E402
from kernels.triton.attention import flash_attention, fp8_attention, packed_attention  # noqa: E402
from kernels.triton.decode import flash_decoding, paged_attention  # noqa: E402
from kernels.triton.merge import add_sink, merge  # noqa: E402
from kernels.triton.softmax import online_softmax  # noqa: E402


def random(*shape, dtype=torch.float16):
    return torch.randn(shape, device="cuda").to(dtype)


def main():
    torch.manual_seed(0)
    for dtype, dim, v_dim in ((torch.float16, 64, 64), (torch.bfloat16, 128, 128), (torch.float32, 33, 7)):
        q, k, v = (
            random(2, 4, 131, dim, dtype=dtype),
            random(2, 2, 197, dim, dtype=dtype),
            random(2, 2, 197, v_dim, dtype=dtype),
        )
        for options in (
            {},
            {"causal": True},
            {"causal": True, "window": 50, "q_lens": [131, 7], "kv_lens": [1, 197]},
        ):
            o, lse = flash_attention(*(x.requires_grad_() for x in (q, k, v)), **options)
            o.backward(torch.randn_like(o))
        merge(o.detach(), lse, o.detach(), lse)
        add_sink(o.detach(), lse, random(4, dtype=torch.float32))
        q, k, v = (x.detach() for x in (q, k, v))
        flash_attention(q, k, v, causal=True, score_mod=score_mods.softcap, aux=30.0)
        tokens = [x.transpose(1, 2).flatten(0, 1).requires_grad_() for x in (q, k, v)]
        o, _ = packed_attention(*tokens, [0, 1, 150, 262], [0, 90, 91, 394], causal=True)
        o.backward(torch.randn_like(o))
        table = torch.tensor([[4, 0, 6, -1], [2, 5, 1, 3]], dtype=torch.int32, device="cuda")
        for cache_dtype in (dtype, host.FP8):
            cache = [random(7, 16, 2, n, dtype=cache_dtype) for n in (dim, v_dim)]
            for splits in (1, 3):
                paged_attention(random(2, 4, 1, dim, dtype=dtype), *cache, table, [33, 64], splits=splits)
        flash_decoding(random(2, 4, 3, dim, dtype=dtype), k, v, causal=True, splits=5)
    fp8 = [random(1, 2, 100, 64, dtype=host.FP8) for _ in range(3)]
    fp8_attention(*fp8, causal=True)
    online_softmax(random(5, 3001))
    torch.cuda.synchronize()
    print("every kernel ran on small shapes")


if __name__ == "__main__":
    main()
