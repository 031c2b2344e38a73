"""Every kernel compiles for cards from Ampere on, and asks for no more shared memory than they have."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has wheels for Linux alone")

SCRIPT = Path(__file__).with_name("compile_kernels.py")


def compiled(tmp_path, *args):
    environment = {n: x for n, x in os.environ.items() if n != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # what is compiled here was not compiled before
    result = subprocess.run(
        [sys.executable, str(SCRIPT), *args], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


def assert_fits(results):
    too_large = [r for r in results if r["shared"] > r["limit"]]
    assert not too_large
    assert all(
        r["shared"] > 0 for r in results if r["kernel"] in ("forward_kernel", "hopper_kernel", "dq_kernel", "dkdv_kernel")
    )


def test_a_few_kernels_compile_for_cards_that_are_not_here(tmp_path):
    results = compiled(tmp_path)
    assert_fits(results)
    assert {r["card"] for r in results} == {80, 86, 89, 90}
    assert {r["kernel"] for r in results} == {
        "forward_kernel", "hopper_kernel", "delta_kernel", "dq_kernel", "dkdv_kernel", "decode_kernel", "merge_kernel",
    }  # fmt: skip


@pytest.mark.skipif(not os.environ.get("COMPILE_ALL"), reason="takes ten minutes: set COMPILE_ALL=1")
def test_all_kernels_compile_for_all_cards(tmp_path):
    results = compiled(tmp_path, "--all")
    assert_fits(results)
    assert {r["card"] for r in results} == {80, 86, 89, 90}
