"""The row softmax in Triton, against float64."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has wheels for Linux alone")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from kernel_yardstick import DTYPES, to64  # noqa: E402

from kernels.reference import online_softmax as reference  # noqa: E402
from kernels.triton.softmax import online_softmax  # noqa: E402

NAN = math.nan
# Of a probability: one rounding of the result (the interpreter cuts bfloat16 off), and a few of float32.
RELATIVE = {torch.float32: 2e-6, torch.float16: 2**-11 + 2e-6, torch.bfloat16: 2**-7}
ABSOLUTE = {
    torch.float32: 1e-37,
    torch.float16: 2**-24,
    torch.bfloat16: 1e-37,
}  # below: numbers with fewer digits


def poisoned(x, tile):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", lambda *shape, **options: torch.full(*shape, NAN, **options))
        return online_softmax(x, tile)


def assert_right(x, tile):
    got, expected = to64(poisoned(x, tile)), reference(to64(x), 7)
    scale = max(
        1, np.abs(to64(x)[np.isfinite(to64(x))]).max(initial=0)
    )  # exp carries the rounding of its argument
    relative = RELATIVE[x.dtype] + 2.0**-23 * scale
    assert (np.abs(got - expected) <= relative * expected + ABSOLUTE[x.dtype]).all()


@settings(deadline=None, max_examples=10)
@given(
    shape=st.lists(st.integers(1, 4), min_size=0, max_size=2),
    n=st.integers(1, 70),
    tile=st.sampled_from([8, 16, 64]),
    spread=st.sampled_from([1, 100]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_row(shape, n, tile, spread, dtype, seed, device):
    """Some numbers are -inf, and some rows throughout."""
    rng = np.random.default_rng(seed)
    x = spread * rng.standard_normal((*shape, n))
    x[rng.random(x.shape) < 0.3] = -np.inf
    assert_right(torch.from_numpy(x).to(device, dtype), tile)


@pytest.mark.parametrize("n", [1, 2, 15, 17, 127, 128, 129, 1023, 1025])
def test_lengths_around_tile_boundaries(n, device):
    x = torch.randn(3, n, generator=torch.Generator().manual_seed(0)).to(device)
    assert_right(x, 128)


def test_strides(device):
    x = torch.randn(4, 6, 33, generator=torch.Generator().manual_seed(0)).to(device)
    for view in x[:1].mT, x[::2, 1:4, ::2], x[:1, :2].expand(3, 2, 33):
        assert_right(view, 16)


def test_empty_rows_equal_numbers_and_nan(device):
    x = torch.full((3, 20), -math.inf, device=device)
    assert not poisoned(x, 16).any()
    assert (poisoned(torch.full((2, 20), 1e4, device=device), 16) - 0.05).abs().max() <= 1e-7
    x[1, 3] = NAN
    got = poisoned(x, 16)
    assert torch.isnan(got[1]).all()
    assert not got[::2].any()
    assert online_softmax(torch.ones(3, 0, device=device)).shape == (3, 0)


@pytest.mark.parametrize(
    ("x", "tile", "message"),
    [
        (torch.ones(3, dtype=torch.int32), 16, "x must be float16, bfloat16 or float32, got torch.int32"),
        (torch.tensor(1.0), 16, "x must have at least one axis"),
        (torch.ones(3), 24, "tile must be a power of two, got 24"),
        (torch.ones(3), 0, "tile must be an integer of at least 1, got 0"),
        ([1.0], 16, "x must be a torch tensor, got list"),
    ],
)
def test_refusals(x, tile, message, device):
    with pytest.raises(ValueError, match=message):
        online_softmax(x.to(device) if isinstance(x, torch.Tensor) else x, tile)
