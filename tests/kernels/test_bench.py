"""kernels.bench without a GPU: what is refused, what is listed, what the table and the plot say. Its measurements are
made on a card and committed; `test_committed_results` reads those."""

import json
import os
import re
import xml.etree.ElementTree

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has wheels for Linux alone")

from kernels.bench import __main__ as bench  # noqa: E402
from kernels.bench import show  # noqa: E402

RESULTS = sorted(bench.RESULTS.glob("*.json"))


def report(rows):
    return {
        "card": {"name": "A card", "capability": "9.0", "memory_bytes": 1, "multiprocessors": 2},
        "versions": {"torch": "1", "triton": "2"}, "date": "2026-01-02", "dtype": "bfloat16", "tokens": 3, "width": 4,
        "ceilings": {"copy_gb_s": 1.0, "read_gb_s": 2.0, "matmul_tflops": 3.0}, "rows": rows,
    }  # fmt: skip


DENSE = {"what": "forward", "head_dim": 64, "q_len": 100, "causal": True, "error": 0.001, "ms": 1.0}
ROWS = [
    {**DENSE, "who": "ours", "tflops": 12.4},
    {**DENSE, "who": "theirs", "tflops": 11.6},
    {**DENSE, "causal": False, "who": "ours", "tflops": 14.0},
    {**DENSE, "causal": False, "who": "theirs", "why": "wrong: its relative error is nan, more than 0.01"},
    {
        "what": "decode",
        "batch": 1,
        "context": 50,
        "heads": 8,
        "kv_heads": 2,
        "page": 16,
        "who": "ours",
        "gb_s": 100.0,
    },
    {
        "what": "decode",
        "batch": 1,
        "context": 50,
        "heads": 8,
        "kv_heads": 2,
        "page": 64,
        "who": "ours",
        "gb_s": 200.0,
    },
    {
        "what": "decode",
        "batch": 1,
        "context": 50,
        "heads": 8,
        "kv_heads": 2,
        "page": None,
        "who": "dense",
        "gb_s": 9.0,
    },
]


def test_the_table_says_each_figure_once_and_why_one_is_missing(tmp_path):
    text = show.table(report(ROWS))
    assert "| 64, 100, yes | 12 | 12 |" in text and "| 64, 100, no | 14 | - |" in text
    assert "| 1 x 50, 8/2 | 100 / 200 | 9 |" in text
    assert "- forward, theirs: wrong: its relative error is nan" in text


def test_the_plot_is_the_same_bytes_every_time_and_has_every_name(tmp_path):
    show.plot(report(ROWS), tmp_path / "a.svg")
    show.plot(report(ROWS), tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    xml.etree.ElementTree.fromstring(text)
    for name in ("ours", "theirs", "dense", "forward, TFLOP/s", "decode, pages of 16, GB/s read"):
        assert f"<!-- {name} -->" in text


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda o: o * 1.02, "wrong: its relative error is 0.02"),
        (lambda o: torch.where(torch.arange(4) == 2, torch.nan, o), "wrong: its relative error is nan"),
        (lambda o: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda o: __import__("no_such_package"), "not installed: no_such_package"),
        (
            lambda o: os.stat("/home/ada/none.cu"),
            "FileNotFoundError: [Errno 2] No such file or directory: 'none.cu'",
        ),
    ],
)
def test_what_is_wrong_is_not_timed(spoil, why):
    o = torch.arange(8.0).reshape(1, 2, 4) + 1
    row = bench.measured(lambda: lambda: spoil(o), (), o[bench.HEAD].double(), bench.HEAD, lambda call: 1 / 0)
    assert "ms" not in row and row["why"].startswith(why)


@pytest.mark.parametrize("path", sorted(bench.RESULTS.iterdir()), ids=lambda path: path.name)
def test_results_name_no_folder_of_the_machine(path):
    text = path.read_text(encoding="utf-8")
    assert not any(f"/{folder}/" in text for folder in ("root", "home", "tmp", "Users"))


def test_what_is_right_is_timed():
    o = torch.rand(1, 2, 4)
    row = bench.measured(
        lambda x: lambda: (o, x), (o,), (o[0, 1].double(),) * 2, bench.HEAD, lambda call: 5.0
    )
    assert row["ms"] == 5.0 and row["error"] < 1e-6


def test_the_truth_of_one_head():
    q, k, v = (torch.randn(1, 1, 9, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    do = torch.randn(1, 1, 9, 4, dtype=torch.float64)
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    gradients = torch.autograd.grad(o, (q, k, v), do)
    assert torch.allclose(bench.exact_head(*(x[0, 0].detach() for x in (q, k, v)), True), o[0, 0])
    for mine, theirs in zip(
        bench.exact_head(*(x[0, 0].detach() for x in (q, k, v)), True, do[0, 0]), gradients, strict=True
    ):
        assert torch.allclose(mine, theirs[0, 0])


def test_without_a_gpu_or_a_file_one_line_says_what_to_do(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert bench.main([]) == 1
    assert "torch finds none here" in capsys.readouterr().err
    (tmp_path / "x.json").write_text("[1")
    assert bench.main(["--show", str(tmp_path / "x.json")]) == 1
    assert "should be a JSON file that kernels.bench wrote" in capsys.readouterr().err


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_committed_results(path):
    """Whole, right before it was timed, and the table beside it is its own."""
    found = json.loads(path.read_text(encoding="utf-8"))
    assert path.with_suffix(".md").read_text(encoding="utf-8") == show.table(found)
    assert path.with_suffix(".svg").exists()
    ours = [row for row in found["rows"] if row["who"] == "ours"]
    assert len(ours) == 12 + 4 + 2 * len(bench.DECODE)
    for row in found["rows"]:
        assert ("why" in row) != ("ms" in row)
        if row["who"] == "ours" or "ms" in row:
            assert row["error"] <= bench.LIMIT and row["ms"] > 0
        if "tflops" in row:
            many = bench.dense_flops(row["head_dim"], row["q_len"], row["causal"]) * (
                2.5 if row["what"] == "backward" else 1
            )
            assert row["tflops"] == pytest.approx(many / row["ms"] / 1e9)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"]) and found["card"]["name"]


def test_there_is_a_committed_result():
    assert "h200" in [path.stem for path in RESULTS]
