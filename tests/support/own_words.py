"""Right answers to exercise 03, each written from nothing in a way of its own: what an honest class looks like.

Four people, four styles; the maths is the same, since there is one right recurrence. No text is shared with `solutions/`.
"""

# The lines of the kernel that the exercise gives.
_KERNEL = '''
@triton.jit
def flash_forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    lse_ptr,
    q_len,
    kv_len,
    scale,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One head, one tile of BLOCK_M queries, all keys in tiles of BLOCK_N."""
    head = tl.program_id(1).to(tl.int64)  # an offset may pass 2^31
    q_ptr += head * q_len * HEAD_DIM
    o_ptr += head * q_len * HEAD_DIM
    lse_ptr += head * q_len
    k_ptr += head * kv_len * HEAD_DIM
    v_ptr += head * kv_len * HEAD_DIM
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)'''

ANSWERS = {
    # Names everything, one operation a line.
    "careful": {
        "solution-step": '''
def step(state, tile):
    """The state (m, l, o) after one more tile (s, v)."""
    m, l, o = state
    s, v = tile
    tile_max = np.max(s)
    new_max = np.maximum(m, tile_max)
    if np.isneginf(new_max):
        return (m, l, o)
    rescale = np.exp(m - new_max)
    weights = np.exp(s - new_max)
    new_sum = l * rescale + np.sum(weights)
    new_out = o * rescale + np.dot(weights, v)
    return new_max, new_sum, new_out
''',
        "solution-one-query": '''
def flash_one_query(q, k, v, tile):
    """Attention of one query (d,) over all keys (n, d) and values (n, dv), a tile at a time."""
    n, d = k.shape
    scale = 1.0 / np.sqrt(d)
    m, l, o = -np.inf, 0.0, np.zeros(v.shape[-1])
    begin = 0
    while begin < n:
        end = min(begin + tile, n)
        scores = np.dot(k[begin:end], q) * scale
        m, l, o = step((m, l, o), (scores, v[begin:end]))
        begin = end
    return np.divide(o, l)
''',
        "solution-tiles": '''
def flash_attention(q, k, v, tile_q, tile_k):
    """Attention of queries (n_q, d) over keys (n_k, d) and values (n_k, dv), tile by tile: (o, lse)."""
    n_q, d = q.shape
    n_k = k.shape[0]
    scale = 1.0 / np.sqrt(d)
    out = np.zeros((n_q, v.shape[1]))
    log_sums = np.zeros(n_q)
    for i in range(0, n_q, tile_q):
        j = min(i + tile_q, n_q)
        row_max = np.full((j - i, 1), -np.inf)
        row_sum = np.zeros((j - i, 1))
        acc = np.zeros((j - i, v.shape[1]))
        for a in range(0, n_k, tile_k):
            b = min(a + tile_k, n_k)
            scores = scale * np.matmul(q[i:j], k[a:b].transpose())
            new_max = np.maximum(row_max, np.max(scores, axis=1, keepdims=True))
            rescale = np.exp(row_max - new_max)
            weights = np.exp(scores - new_max)
            row_sum = row_sum * rescale + np.sum(weights, axis=1, keepdims=True)
            acc = acc * rescale + np.matmul(weights, v[a:b])
            row_max = new_max
        out[i:j] = acc / row_sum
        log_sums[i:j] = (row_max + np.log(row_sum))[:, 0]
    return out, log_sums
''',
        "solution-kernel": _KERNEL
        + """
    row_ok = rows < q_len
    q_where = q_ptr + rows[:, None] * HEAD_DIM + dims[None, :]
    q = tl.load(q_where, mask=row_ok[:, None], other=0.0)
    NEG = float("-inf")
    row_max = tl.zeros([BLOCK_M], dtype=tl.float32) + NEG
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    diagonal = rows + (kv_len - q_len)
    for j in range(0, tl.cdiv(kv_len, BLOCK_N)):
        cols = j * BLOCK_N + tl.arange(0, BLOCK_N)
        col_ok = cols < kv_len
        k_t = tl.load(k_ptr + dims[:, None] + cols[None, :] * HEAD_DIM, mask=col_ok[None, :], other=0.0)
        scores = tl.dot(q, k_t, input_precision="ieee")
        scores = scores * scale
        keep = row_ok[:, None] & col_ok[None, :]
        if CAUSAL:
            keep = keep & (diagonal[:, None] >= cols[None, :])
        scores = tl.where(keep, scores, NEG)
        new_max = tl.maximum(row_max, tl.max(scores, axis=1))
        safe = tl.where(new_max > NEG, new_max, 0.0)
        weights = tl.exp(scores - safe[:, None])
        rescale = tl.exp(row_max - safe)
        v = tl.load(v_ptr + cols[:, None] * HEAD_DIM + dims[None, :], mask=col_ok[:, None], other=0.0)
        acc = acc * rescale[:, None]
        acc = tl.dot(weights.to(v.dtype), v, acc, input_precision="ieee")
        row_sum = row_sum * rescale + tl.sum(weights, axis=1)
        row_max = new_max
    nothing = row_sum <= 0.0
    divisor = tl.where(nothing, 1.0, row_sum)
    result = acc / divisor[:, None]
    tl.store(o_ptr + rows[:, None] * HEAD_DIM + dims[None, :], result, mask=row_ok[:, None])
    lse = tl.where(nothing, NEG, row_max + tl.log(divisor))
    tl.store(lse_ptr + rows, lse, mask=row_ok)
""",
    },
    # Short, with slices made once and a running tuple.
    "terse": {
        "solution-step": '''
def step(state, tile):
    """The state (m, l, o) after one more tile (s, v)."""
    m, l, o = state
    s, v = tile
    M = max(s.max(), m)
    c = M if np.isfinite(M) else 0
    f, w = np.exp(m - c), np.exp(s - c)
    return M, f * l + w.sum(), f * o + (w[:, None] * v).sum(0)
''',
        "solution-one-query": '''
def flash_one_query(q, k, v, tile):
    """Attention of one query (d,) over all keys (n, d) and values (n, dv), a tile at a time."""
    S = (-np.inf, 0, 0 * v[0])
    for t in range(-(-len(k) // tile)):
        part = slice(t * tile, (t + 1) * tile)
        S = step(S, (q @ k[part].T * len(q) ** -0.5, v[part]))
    return S[2] / S[1]
''',
        "solution-tiles": '''
def flash_attention(q, k, v, tile_q, tile_k):
    """Attention of queries (n_q, d) over keys (n_k, d) and values (n_k, dv), tile by tile: (o, lse)."""
    q = q * q.shape[1] ** -0.5
    os, ls = [], []
    for Q in (q[i : i + tile_q] for i in range(0, len(q), tile_q)):
        m, l, o = np.array([-np.inf] * len(Q)), 0.0, 0 * Q[:, :1] + 0 * v[:1]
        for t in range(-(-len(k) // tile_k)):
            part = slice(t * tile_k, (t + 1) * tile_k)
            s = Q @ k[part].T
            M = np.maximum(s.max(1), m)
            f, w = np.exp(m - M), np.exp(s.T - M).T
            m, l, o = M, f * l + w.sum(1), (f * o.T).T + w @ v[part]
        os.append(o / l[:, np.newaxis])
        ls.append(m + np.log(l))
    return np.concatenate(os), np.concatenate(ls)
''',
    },
    # Helpers of its own, and a class for the state.
    "structured": {
        "solution-step": '''
def finite(m):
    return np.where(m == -np.inf, 0.0, m)


def step(state, tile):
    """The state (m, l, o) after one more tile (s, v)."""
    m, l, o = state
    s, v = tile
    best = np.maximum(m, s.max(initial=-np.inf))
    before, now = (np.exp(x - finite(best)) for x in (m, s))
    return best, l * before + now.sum(), o * before + np.einsum("n,nd->d", now, v)
''',
        "solution-one-query": '''
def tiles(n, size):
    return [slice(at, at + size) for at in range(0, n, size)]


def flash_one_query(q, k, v, tile):
    """Attention of one query (d,) over all keys (n, d) and values (n, dv), a tile at a time."""
    state = -np.inf, 0.0, np.zeros(v.shape[1], v.dtype)
    for part in tiles(len(k), tile):
        state = step(state, (np.einsum("nd,d->n", k[part], q) / len(q) ** 0.5, v[part]))
    return state[-1] / state[1]
''',
        "solution-tiles": '''
class Rows:
    def __init__(self, count, width):
        self.best, self.total, self.sum = np.full(count, -np.inf), np.zeros(count), np.zeros((count, width))

    def add(self, s, values):
        best = np.maximum(self.best, s.max(-1))
        keep = np.exp(self.best - finite(best))
        now = np.exp(s - finite(best)[:, None])
        self.best = best
        self.total = self.total * keep + now.sum(-1)
        self.sum = self.sum * keep[:, None] + now @ values


def flash_attention(q, k, v, tile_q, tile_k):
    """Attention of queries (n_q, d) over keys (n_k, d) and values (n_k, dv), tile by tile: (o, lse)."""
    o, lse = np.zeros((len(q), v.shape[1])), np.zeros(len(q))
    for mine in tiles(len(q), tile_q):
        rows = Rows(len(q[mine]), v.shape[1])
        for part in tiles(len(k), tile_k):
            rows.add(np.einsum("id,jd->ij", q[mine], k[part]) / q.shape[1] ** 0.5, v[part])
        o[mine] = rows.sum / rows.total[:, None]
        lse[mine] = rows.best + np.log(rows.total)
    return o, lse
''',
    },
    # As near to the page's formulas as one can write.
    "by the book": {
        "solution-step": '''
def step(state, tile):
    """The state (m, l, o) after one more tile (s, v)."""
    m, l, o = state
    s, v = tile
    m_prime = max(m, np.max(s))
    m_safe = 0.0 if m_prime == float("-inf") else m_prime
    correction = np.exp(m - m_safe)
    p = np.exp(s - m_safe)
    l_prime = correction * l + np.sum(p)
    o_prime = correction * o + p @ v
    return m_prime, l_prime, o_prime
''',
        "solution-one-query": '''
def flash_one_query(q, k, v, tile):
    """Attention of one query (d,) over all keys (n, d) and values (n, dv), a tile at a time."""
    d = q.shape[0]
    m, l, o = float("-inf"), 0.0, np.zeros((v.shape[1],))
    for t in range(0, k.shape[0], tile):
        k_t, v_t = k[t : t + tile], v[t : t + tile]
        s = (k_t @ q) / np.sqrt(d)
        m, l, o = step((m, l, o), (s, v_t))
    return o / l
''',
        "solution-tiles": '''
def flash_attention(q, k, v, tile_q, tile_k):
    """Attention of queries (n_q, d) over keys (n_k, d) and values (n_k, dv), tile by tile: (o, lse)."""
    n_q, d = q.shape
    o_all = np.empty((n_q, v.shape[1]))
    lse_all = np.empty(n_q)
    for i in range(0, n_q, tile_q):
        q_i = q[i : i + tile_q]
        m = np.full(q_i.shape[0], -np.inf)
        l = np.zeros(q_i.shape[0])
        o = np.zeros((q_i.shape[0], v.shape[1]))
        for t in range(0, k.shape[0], tile_k):
            k_t, v_t = k[t : t + tile_k], v[t : t + tile_k]
            s = (q_i @ k_t.T) / np.sqrt(d)
            m_prime = np.maximum(m, np.max(s, axis=1))
            correction = np.exp(m - m_prime)
            p = np.exp(s - m_prime[:, np.newaxis])
            l = correction * l + np.sum(p, axis=1)
            o = correction[:, np.newaxis] * o + p @ v_t
            m = m_prime
        o_all[i : i + tile_q] = o / l[:, np.newaxis]
        lse_all[i : i + tile_q] = m + np.log(l)
    return o_all, lse_all
''',
        "solution-kernel": _KERNEL
        + """
    at = rows[:, None] * HEAD_DIM + dims
    inside = (rows < q_len)[:, None]
    q = tl.load(q_ptr + at, inside, 0.0)
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l = tl.full((BLOCK_M,), 0.0, tl.float32)
    o = tl.full((BLOCK_M, HEAD_DIM), 0.0, tl.float32)
    columns = tl.arange(0, BLOCK_N)
    for t in range(0, kv_len, BLOCK_N):
        here = (columns < kv_len - t)[:, None]
        key_at = (t + columns)[:, None] * HEAD_DIM + dims
        k_t = tl.load(k_ptr + key_at, here, 0.0)
        v_t = tl.load(v_ptr + key_at, here, 0.0)
        s = scale * tl.dot(q, tl.trans(k_t), input_precision="ieee")
        s = tl.where(columns[None, :] < kv_len - t, s, -float("inf"))
        if CAUSAL:
            s = tl.where(t + columns[None, :] - (kv_len - q_len) > rows[:, None], -float("inf"), s)
        m_prime = tl.maximum(tl.max(s, 1), m)
        m_safe = tl.where(m_prime == -float("inf"), 0, m_prime)
        correction = tl.exp(m - m_safe)
        p = tl.exp(s - m_safe[:, None])
        o = correction[:, None] * o + tl.dot(p.to(v_t.dtype), v_t, input_precision="ieee")
        l = correction * l + tl.sum(p, 1)
        m = m_prime
    some = l > 0
    tl.store(o_ptr + at, tl.where(some[:, None], o / tl.where(some, l, 1.0)[:, None], 0.0), inside)
    tl.store(lse_ptr + rows, tl.where(some, m + tl.log(tl.where(some, l, 1.0)), -float("inf")), rows < q_len)
""",
    },
}
