"""What else computes attention on this machine: each under the name that a table shows, or the reason why not.

An entry takes the inputs and gives back a function of no arguments that computes o (batch, heads, q_len, head_dim), all
set-up done: what is timed is the computation alone.
"""

import math

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels.triton import forward, host
from kernels.triton.attention import flash_attention
from kernels.triton.decode import paged_attention


def ours(q, k, v, causal):
    return lambda: flash_attention(q, k, v, causal=causal)[0]


def ours_in_triton(q, k, v, causal):
    """What `flash_attention` would run if it had no other kernel for this card."""
    options = host.check_options(
        q, k.shape[2], causal=causal, window=None, scale=None, score_mod=None, aux=None, q_lens=None, kv_lens=None,
        packed=False,
    )  # fmt: skip
    tiles = host.forward_tiles(q, k, v)

    def call():
        o = torch.empty_like(q)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        forward.launch(q, k, v, o, lse, options, tiles)
        return o

    return call


def sdpa(backend):
    def prepare(q, k, v, causal):
        def call():
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(
                    q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
                )

        return call

    return prepare


def flex(q, k, v, causal):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def below_diagonal(batch, head, i, j):
        return i >= j

    mask = (
        create_block_mask(below_diagonal, None, None, q.shape[2], k.shape[2], device=q.device)
        if causal
        else None
    )
    torch._dynamo.reset()  # each shape compiled for itself
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, block_mask=mask)


def plain(q, k, v, causal):
    """The formula, with all scores in memory: two matrix products and a softmax, in the dtype of q."""
    hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).triu(1) if causal else None

    def call():
        s = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
        return (s if hidden is None else s.masked_fill_(hidden, -torch.inf)).softmax(3) @ v

    return call


def fa4(q, k, v, causal):
    from flash_attn.cute import flash_attn_func

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return lambda: flash_attn_func(q, k, v, causal=causal)[0].transpose(1, 2)


DENSE = {
    "ours": ours,
    "SDPA flash": sdpa(SDPBackend.FLASH_ATTENTION),
    "SDPA cuDNN": sdpa(SDPBackend.CUDNN_ATTENTION),
    "FlexAttention": flex,
    "plain formula": plain,
    "FlashAttention-4": fa4,
}
FORWARD = {"ours": ours, "ours in Triton": ours_in_triton} | DENSE
COMPILED = ("FlexAttention",)  # many seconds a shape
QUADRATIC = ("plain formula",)
AT_128 = ("ours in Triton",)  # where ours may be something else


def paged_ours(q, k_cache, v_cache, table, lens):
    return lambda: paged_attention(q, k_cache, v_cache, table, lens)[0]


def paged_flashinfer(tensor_cores):
    def prepare(q, k_cache, v_cache, table, lens):
        import flashinfer

        batch, heads, _, head_dim = q.shape
        page, kv_heads = k_cache.shape[1:3]
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            torch.empty(512 * 2**20, dtype=torch.uint8, device=q.device), "NHD", use_tensor_cores=tensor_cores
        )
        pages = (lens.cpu() + page - 1) // page
        starts = torch.cat([torch.zeros(1, dtype=torch.int32), pages.cumsum(0).to(torch.int32)]).to(q.device)
        wrapper.plan(
            starts, table.reshape(-1), ((lens - 1) % page + 1).to(torch.int32), heads, kv_heads, head_dim, page,
            q_data_type=q.dtype, kv_data_type=k_cache.dtype,
        )  # fmt: skip
        return lambda: wrapper.run(q[:, :, 0], (k_cache, v_cache))[:, :, None]

    return prepare


def gathered(backend):
    """SDPA knows no pages: it gets the same keys in one piece, put there before the clock starts."""

    def prepare(q, k_cache, v_cache, table, lens):
        k, v = (x[table.long()].flatten(1, 2).transpose(1, 2).contiguous() for x in (k_cache, v_cache))
        return sdpa(backend)(q, k, v, False)

    return prepare


PAGED = {
    "ours": paged_ours,
    "FlashInfer": paged_flashinfer(False),
    "FlashInfer, tensor cores": paged_flashinfer(True),
    "SDPA flash, dense": gathered(SDPBackend.FLASH_ATTENTION),
    "SDPA cuDNN, dense": gathered(SDPBackend.CUDNN_ATTENTION),
}
