"""Attention over tensors that hold all their keys: padded batches and packed ones, forward and backward."""

import torch

from kernels.reference.arguments import check_dense_shapes, check_packed_shapes

from . import backward, forward, hopper, host


def flash_attention(
    q, k, v, *,
    causal=False, window=None, scale=None, score_mod=None, aux=None, q_lens=None, kv_lens=None,
):  # fmt: skip
    """Attention and its lse, without the score matrix. Beyond its results forward allocates nothing.

    q: (batch, heads, q_len, head_dim).
    k: (batch, kv_heads, kv_len, head_dim); v: (batch, kv_heads, kv_len, v_dim).
    All float16, all bfloat16 or all float32, on one GPU (or a CPU under TRITON_INTERPRET=1); any strides.
    head_dim and v_dim: 1 to 256 each. Query head h reads KV head h // (heads // kv_heads).
    causal: query i sees the keys j <= i + kv_len - q_len, with each sequence's own lengths.
    window: query i sees the keys less than `window` away from i + kv_len - q_len; None: no limit.
    scale: factor of the scores, 1 / sqrt(head_dim) by default.
    score_mod: a @triton.jit function (score, batch, head, q_index, kv_index, aux) -> score, see `score_mods`;
    aux: what it reads, a tensor or number, or a tuple of them. -inf hides a key.
    q_lens, kv_lens: (batch,) integers (tensor or list), how much of each sequence is real; the rest is never
    read. Lengths on the GPU are not waited for: values out of range are clamped there. Others are checked.

    Returns o (batch, heads, q_len, v_dim) in the dtype of q, and lse (batch, heads, q_len) float32, the
    natural log of the sum of exp(score); both contiguous. Queries beyond q_lens, and those that see no key,
    get 0 and -inf. Sums are float32; float32 products are full float32. o can be differentiated, but not with
    a score_mod.

    ValueError, before anything is launched, for arguments that do not fit, naming the argument.
    """
    host.check_tensors(forward.forward_kernel, q=q, k=k, v=v)
    check_dense_shapes(q.shape, k.shape, v.shape)
    host.check_head_dims(q, v)
    q_lens = host.check_lengths("q_lens", q_lens, q.shape[0], q.shape[2], q.device)
    kv_lens = host.check_lengths("kv_lens", kv_lens, q.shape[0], k.shape[2], q.device)
    options = host.check_options(
        q, k.shape[2], causal=causal, window=window, scale=scale, score_mod=score_mod, aux=aux, q_lens=q_lens,
        kv_lens=kv_lens, packed=False,
    )  # fmt: skip
    refuse_gradient(q, k, v, score_mod, aux)
    return Attention.apply(q, k, v, options)


def packed_attention(
    q, k, v, cu_seqlens_q, cu_seqlens_k, *, causal=False, window=None, scale=None, score_mod=None, aux=None
):
    """Attention of each sequence over its own keys, all of them in one row of tokens.

    q: (total_q, heads, head_dim); k: (total_k, kv_heads, head_dim); v: (total_k, kv_heads, v_dim).
    cu_seqlens_q, cu_seqlens_k: (batch + 1,) integers (tensor or list) from 0 on that never fall; sequence b
    is tokens cu_seqlens[b] .. cu_seqlens[b + 1] - 1. Tokens from cu_seqlens[-1] on belong to none. Values on
    the GPU are not waited for: what they say beyond the tensors is clamped.
    The rest as `flash_attention`; the indices that score_mod gets count within their sequence.

    Returns o (total_q, heads, v_dim) and lse (total_q, heads) float32; 0 and -inf for a token of no sequence.
    """
    host.check_tensors(forward.forward_kernel, q=q, k=k, v=v)
    check_packed_shapes(q.shape, k.shape, v.shape)
    host.check_head_dims(q, v)
    cu_seqlens_q = host.check_cu_seqlens("cu_seqlens_q", cu_seqlens_q, len(q), q.device)
    cu_seqlens_k = host.check_cu_seqlens("cu_seqlens_k", cu_seqlens_k, len(k), q.device)
    if len(cu_seqlens_q) != len(cu_seqlens_k):
        raise ValueError(
            "cu_seqlens_q and cu_seqlens_k must have the same number of sequences, "
            f"got {len(cu_seqlens_q) - 1} and {len(cu_seqlens_k) - 1}"
        )
    options = host.check_options(
        host.as_dense(q, 1), len(k), causal=causal, window=window, scale=scale, score_mod=score_mod, aux=aux,
        q_lens=cu_seqlens_q, kv_lens=cu_seqlens_k, packed=True,
    )  # fmt: skip
    refuse_gradient(q, k, v, score_mod, aux)
    return Attention.apply(q, k, v, options)


def fp8_attention(
    q, k, v, *,
    q_descale=None, k_descale=None, v_descale=None, causal=False, window=None, scale=None, q_lens=None, kv_lens=None,
):  # fmt: skip
    """`flash_attention` of float8_e4m3fn tensors, forward alone. The result is bfloat16.

    q_descale, k_descale, v_descale: what the numbers of each are to be multiplied by: a number, or a tensor
    (kv_heads,), of which a query head takes that of its KV head; None: 1. The products are done in float16,
    which holds every e4m3 number, with float32 sums.
    """
    host.check_tensors(forward.forward_kernel, dtypes=(host.FP8,), q=q, k=k, v=v)
    check_dense_shapes(q.shape, k.shape, v.shape)
    host.check_head_dims(q, v)
    q_lens = host.check_lengths("q_lens", q_lens, q.shape[0], q.shape[2], q.device)
    kv_lens = host.check_lengths("kv_lens", kv_lens, q.shape[0], k.shape[2], q.device)
    options = host.check_options(
        q, k.shape[2], causal=causal, window=window, scale=scale, score_mod=None, aux=None, q_lens=q_lens,
        kv_lens=kv_lens, packed=False,
    )  # fmt: skip
    q_descale, k_descale, v_descale = (
        host.check_descale(name, 1.0 if x is None else x, k.transpose(1, 2))
        for name, x in (("q_descale", q_descale), ("k_descale", k_descale), ("v_descale", v_descale))
    )
    descales = torch.stack([q_descale * k_descale, v_descale])
    o = torch.empty((*q.shape[:3], v.shape[3]), dtype=torch.bfloat16, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    forward.launch(q, k, v, o, lse, options, host.forward_tiles(q, k, v), descales)
    return o, lse


class Attention(torch.autograd.Function):
    """(o, lse) of q, k, v, and the gradients of o. lse has none: do not train on it.

    The gradients are the same to the bit every time. Backward keeps q, k, v, o and lse, and allocates beyond
    the gradients one float32 a row of o.
    """

    @staticmethod
    def forward(ctx, q, k, v, options):
        o = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
        views = as_launched(options, q, k, v, o, lse)
        if views is None:
            o.zero_()
            lse.fill_(float("-inf"))
        elif hopper.fits(*views[:3], options):
            hopper.launch(*views, options)
        else:
            forward.launch(*views, options, host.forward_tiles(*views[:3], options.score_mod))
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.options = options
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)  # lse has none, and zeros for it would be as large
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do, _):
        if do is None:
            return None, None, None, None
        q, k, v, o, lse = ctx.saved_tensors
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        views = as_launched(ctx.options, q, k, v, o, lse, do, dq, dk, dv)
        if views is None:
            for x in dq, dk, dv:
                x.zero_()
        else:
            q, k, v, o, lse, do, *_ = views
            backward.launch(*views, ctx.options, host.backward_tiles(q, k, v, do))
        return dq, dk, dv, None


def as_launched(options, *tensors):
    """The tensors with the axes that `launch` takes; None where packed tensors have tokens but no sequence."""
    if not options.packed:
        return tensors
    batch = len(options.q_lens) - 1
    return [host.as_dense(x, batch) for x in tensors] if batch else None


def refuse_gradient(q, k, v, score_mod, aux):
    """ValueError where a gradient is wanted that no kernel can give."""
    parts = (q, k, v, *(aux if isinstance(aux, tuple) else (aux,)))
    wanted = any(isinstance(x, torch.Tensor) and x.requires_grad for x in parts)
    if score_mod is not None and wanted and torch.is_grad_enabled():
        raise ValueError(
            "score_mod has no backward pass: detach q, k, v and aux, or call under torch.no_grad(); "
            "got tensors that require a gradient"
        )
