"""e4m3 bits in NumPy, against torch's float8_e4m3fn; and what a descale factor means for attention."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.reference import flash_attention, fp8, paged_attention


def test_every_byte_means_what_torch_says():
    torch = pytest.importorskip("torch")
    bits = np.arange(256, dtype=np.uint8)
    expected = torch.from_numpy(bits).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(fp8.dequantize(bits), expected, equal_nan=True)
    assert np.array_equal(np.signbit(fp8.dequantize(bits)), np.signbit(expected))


def test_every_value_and_every_middle_is_rounded_as_torch_rounds():
    torch = pytest.importorskip("torch")
    values = fp8.VALUES[:127]
    middles = (values[1:] + values[:-1]) / 2
    x = np.concatenate(
        [values, middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(1e9))]
    )
    x = np.concatenate([x, -x])
    expected = torch.from_numpy(x).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert np.array_equal(fp8.quantize(x), expected)


def test_beyond_the_range_and_nan():
    assert fp8.dequantize(fp8.quantize([449.0, -1e30, np.inf, -np.inf])).tolist() == [448, -448, 448, -448]
    assert np.isnan(fp8.dequantize(fp8.quantize(np.nan)))


@given(st.floats(-400, 400), st.floats(2**-10, 2**10))
def test_rounding_is_within_half_a_step(x, descale):
    got = float(fp8.dequantize(fp8.quantize(x * descale, descale), descale))
    assert abs(got - x * descale) <= descale * max(2**-10, abs(x) * 2**-4) * (1 + 1e-6)


def test_a_descale_is_a_factor_of_the_scores_and_of_the_output():
    """One factor a KV head; changing it changes the result, as changing K or V would."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, 4, 1, 8)).astype(np.float32)
    k_bits, v_bits = (fp8.quantize(rng.standard_normal((3, 4, 2, 8))) for _ in range(2))
    k_descale, v_descale = np.array([0.5, 3.0])[:, None], np.array([2.0, 0.25])[:, None]
    k, v = fp8.dequantize(k_bits, k_descale), fp8.dequantize(v_bits, v_descale)
    table, lens = [[2, 0, 1]], [11]
    o, lse = paged_attention(q, k, v, table, lens)
    plain_o, plain_lse = paged_attention(q, fp8.dequantize(k_bits), fp8.dequantize(v_bits), table, lens)
    assert np.abs(lse - plain_lse).min() > 1e-3
    dense = (x[table].reshape(1, 12, 2, 8).swapaxes(1, 2)[:, :, :11] for x in (k, v))
    assert np.abs(flash_attention(q, *dense)[0] - o).max() <= 1e-5
    by_hand, hand_lse = paged_attention(
        q * np.repeat(k_descale, 2)[None, :, None, None], fp8.dequantize(k_bits), fp8.dequantize(v_bits),
        table, lens,
    )  # fmt: skip
    assert np.abs(by_hand * np.repeat(v_descale, 2)[None, :, None, None] - o).max() <= 1e-5
    assert np.abs(hand_lse - lse).max() <= 1e-5


def test_only_bytes_are_bits():
    with pytest.raises(ValueError, match="bits must be uint8, .* got dtype float32"):
        fp8.dequantize(np.ones(3, np.float32))
