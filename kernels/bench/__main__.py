"""Measure our kernels beside the ones that are installed, on this machine's GPU.

    python -m kernels.bench [--only WHAT ...] [--to FILE]     measure, and write FILE with its table and plot
    python -m kernels.bench --show FILE                        make the table and the plot of FILE again

Every result is checked before it is timed: one head of it, all its queries, against float64. What is wrong or
refuses is listed with the reason and without a time. Times are medians of `triton.testing.do_bench`, which empties
the L2 between calls; decode is replayed from a CUDA graph, as serving systems do, so that launches cost no one
anything. Inputs are random: zeros run faster than data does.
"""

import argparse
import datetime
import importlib.metadata
import json
import math
import platform
import re
import sys
from pathlib import Path

RESULTS = Path(__file__).with_name("results")
TOKENS, WIDTH = 16_384, 2_048  # of every dense launch: batch x length, heads x head_dim
DECODE = [  # batch, context, query heads, KV heads
    (1, 32_768, 32, 8), (1, 32_768, 32, 32), (1, 32_768, 32, 1), (1, 131_072, 32, 8), (1, 131_072, 32, 1),
    (16, 8_192, 32, 8), (16, 8_192, 32, 32), (64, 8_192, 32, 8), (64, 8_192, 32, 1), (128, 2_048, 32, 8),
    (128, 2_048, 32, 1),
]  # fmt: skip
HEAD = (-1, 1)  # the one that is checked: of the last sequence, the second
LIMIT = 0.01  # of the relative error: bfloat16 results are a few thousandths off, and a wrong one is not near that


def median_ms(call, warmup=25, rep=100):
    import triton

    return triton.testing.do_bench(call, warmup=warmup, rep=rep, return_mode="median")


def relative_error(got, exact):
    """|got - exact| / |exact|, Frobenius norms; NaN where got has one."""
    return ((got.double() - exact).norm() / exact.norm()).item()


def exact_head(q, k, v, causal, do=None):
    """One head (length, head_dim) of attention in float64; with do, its gradients instead: (dq, dk, dv)."""
    import torch

    q, k, v = (x.double().requires_grad_(do is not None) for x in (q, k, v))
    s = q @ k.T / math.sqrt(q.shape[1])
    if causal:
        s = s.masked_fill(torch.ones(s.shape, dtype=torch.bool, device=s.device).triu(1), -torch.inf)
    o = s.softmax(1) @ v
    return o if do is None else torch.autograd.grad(o, (q, k, v), do.double())


def measured(prepare, inputs, exact, at, time):
    """{"ms": .., "error": ..}, or {"why": ..} for what is wrong or can't be had.

    exact: what the results of the prepared call must be at the index `at`, a tensor, or one of each result.
    """
    try:
        call = prepare(*inputs)
        results, truths = (x if isinstance(x, tuple) else (x,) for x in (call(), exact))
        found = max(relative_error(result[at], truth) for result, truth in zip(results, truths, strict=True))
        if not found <= LIMIT:
            return {"error": found, "why": f"wrong: its relative error is {found:.3g}, more than {LIMIT}"}
        return {"error": found, "ms": time(call)}
    except ImportError as problem:
        return {"why": f"not installed: {problem.name or problem}"}
    except Exception as problem:  # a peer may fail in any way; that is a result too
        return {"why": f"{type(problem).__name__}: {without_folders(str(problem))[:200]}"}


def without_folders(text):
    """text in one line, with file names in place of paths: results are published, and say nothing of the machine's folders."""
    return re.sub(r"(?<![\w.])/(?:[^\s/'\"]+/)+", "", " ".join(text.split()))


def dense_inputs(head_dim, length, many=3):
    import torch

    shape = (TOKENS // length, WIDTH // head_dim, length, head_dim)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(many)]


def dense_flops(head_dim, length, causal):
    return 4 * TOKENS * length * WIDTH / (2 if causal else 1)


def forward(peers):
    for head_dim in (128, 64):
        for length in (2_048, 8_192, 16_384):
            q, k, v = dense_inputs(head_dim, length)
            for causal in (False, True):
                exact = exact_head(q[HEAD], k[HEAD], v[HEAD], causal)
                for who, prepare in peers.FORWARD.items():
                    if who in peers.COMPILED + peers.QUADRATIC and length != 8_192:
                        continue
                    if who in peers.AT_128 and head_dim != 128:
                        continue
                    row = measured(prepare, (q, k, v, causal), exact, HEAD, median_ms)
                    if "ms" in row:
                        row["tflops"] = dense_flops(head_dim, length, causal) / row["ms"] / 1e9
                    yield {
                        "what": "forward",
                        "head_dim": head_dim,
                        "q_len": length,
                        "causal": causal,
                        "who": who,
                        **row,
                    }


def gradients(prepare, inputs, causal, do):
    """What computes the gradients of a forward pass that has been made."""
    import torch

    o = prepare(*inputs, causal)()
    return lambda: torch.autograd.grad(o, inputs, do, retain_graph=True)


def backward(peers):
    length = 8_192
    for head_dim in (128, 64):
        *inputs, do = dense_inputs(head_dim, length, 4)
        inputs = [x.requires_grad_() for x in inputs]
        for causal in (False, True):
            exact = exact_head(*(x[HEAD].detach() for x in inputs), causal, do[HEAD])
            for who, prepare in peers.DENSE.items():
                if who in peers.COMPILED:
                    continue
                row = measured(gradients, (prepare, inputs, causal, do), exact, HEAD, median_ms)
                if "ms" in row:
                    row["tflops"] = 2.5 * dense_flops(head_dim, length, causal) / row["ms"] / 1e9
                yield {
                    "what": "backward",
                    "head_dim": head_dim,
                    "q_len": length,
                    "causal": causal,
                    "who": who,
                    **row,
                }


def replayed_ms(call):
    """The time of a call that is captured in a CUDA graph."""
    import torch

    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        call()
    return median_ms(graph.replay, warmup=10, rep=40)


def decode(peers):
    import torch

    for batch, context, heads, kv_heads in DECODE:
        for page in (16, 64):
            blocks = batch * context // page
            q = torch.randn(batch, heads, 1, 128, device="cuda", dtype=torch.bfloat16)
            cache = [
                torch.randn(blocks, page, kv_heads, 128, device="cuda", dtype=torch.bfloat16) for _ in "kv"
            ]
            table = torch.randperm(blocks, device="cuda").to(torch.int32).view(batch, -1)
            lens = torch.full((batch,), context, dtype=torch.int32, device="cuda")
            k, v = (x[table[HEAD[0]].long()].flatten(0, 1)[:, HEAD[1] * kv_heads // heads] for x in cache)
            exact = exact_head(q[HEAD], k, v, False)
            for who, prepare in peers.PAGED.items():
                if page != 16 and who.endswith("dense"):
                    continue  # the same measurement
                row = measured(prepare, (q, *cache, table, lens), exact, HEAD, replayed_ms)
                if "ms" in row:
                    row["gb_s"] = 2 * cache[0].nbytes / row["ms"] / 1e6
                yield {
                    "what": "decode", "batch": batch, "context": context, "heads": heads, "kv_heads": kv_heads,
                    "page": None if who.endswith("dense") else page, "who": who, **row,
                }  # fmt: skip


def ceilings():
    """What this card reaches: a copy (bytes read and written) and a sum (bytes read), both of 4 GiB, and a product of
    two random 8192 x 8192 bfloat16 matrices."""
    import torch

    x = torch.randn(2**30, device="cuda")
    y = torch.empty_like(x)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in "ab")
    return {
        "copy_gb_s": 2 * x.nbytes / median_ms(lambda: y.copy_(x)) / 1e6,
        "read_gb_s": x.nbytes / median_ms(lambda: x.sum()) / 1e6,
        "matmul_tflops": 2 * 8192**3 / median_ms(lambda: a @ b) / 1e9,
    }


KINDS = {"forward": forward, "backward": backward, "decode": decode}


def measure(only):
    """The measurements as a JSON object; a line is printed as each is made."""
    import torch

    from kernels.bench import peers

    torch.manual_seed(0)
    card = torch.cuda.get_device_properties(0)
    versions = {"python": platform.python_version(), "cuda": torch.version.cuda}
    for name in ("torch", "triton", "numpy", "flashinfer-python", "flash-attn-4"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    report = {
        "card": {
            "name": card.name, "capability": f"{card.major}.{card.minor}", "memory_bytes": card.total_memory,
            "multiprocessors": card.multi_processor_count,
        },
        "versions": versions,
        "date": datetime.date.today().isoformat(),
        "dtype": "bfloat16",
        "tokens": TOKENS,
        "width": WIDTH,
        "ceilings": ceilings(),
        "rows": [],
    }  # fmt: skip
    print(report["card"]["name"], report["ceilings"], flush=True)
    for what in only:
        for row in KINDS[what](peers):
            report["rows"].append(row)
            print(row, flush=True)
    return report


def main(arguments):
    parser = argparse.ArgumentParser(
        prog="python -m kernels.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="WHAT",
                        help=f"which of {', '.join(KINDS)} (default: all)")  # fmt: skip
    parser.add_argument(
        "--to", type=Path, metavar="FILE", help="the JSON to write (default: results/CARD.json here)"
    )
    parser.add_argument(
        "--show", type=Path, metavar="FILE", help="no measurement: the table and the plot of FILE"
    )
    options = parser.parse_args(arguments)
    from kernels.bench import show

    path = options.show
    if path is None:
        import torch

        if not torch.cuda.is_available():
            print("error: kernels.bench measures on a GPU, and torch finds none here; "
                  "the committed results: python -m kernels.bench --show kernels/bench/results/h200.json",
                  file=sys.stderr)  # fmt: skip
            return 1
        name = torch.cuda.get_device_name().lower().removeprefix("nvidia ").replace(" ", "_")
        path = options.to or RESULTS / f"{name}.json"
        report = measure(options.only)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        print(f"error: {path} should be a JSON file that kernels.bench wrote ({problem})", file=sys.stderr)
        return 1
    table = show.table(report)
    path.with_suffix(".md").write_text(table, encoding="utf-8")
    show.plot(report, path.with_suffix(".svg"))
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
