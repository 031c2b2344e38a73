"""Eight-bit floats (e4m3), as a KV cache stores them: one sign bit, four of exponent, three of mantissa.

A tensor is kept as e4m3 bits and a descale factor, a number or one a KV head; what it means is
bits * descale. Largest finite value 448, no infinity, NaN is 0x7f and 0xff (Micikevicius et al., 2022, arXiv
2209.05433). NumPy has no such type, so the bits are uint8 here.
"""

import numpy as np

LARGEST = 448.0


def _values():
    bits = np.arange(256)
    exponent, mantissa = bits >> 3 & 15, bits & 7
    value = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7))
    value = np.where(bits & 0x7F == 0x7F, np.nan, value)
    return np.where(bits & 0x80, -value, value).astype(np.float32)


VALUES = _values()  # (256,) float32: what each byte means


def quantize(x, descale=1.0):
    """The e4m3 bits (uint8) nearest to x / descale, ties to even; beyond +-448 the end of the range."""
    x = np.asarray(x, np.float64) / descale
    magnitude = np.minimum(np.abs(x), LARGEST)
    _, exponent = np.frexp(magnitude)
    spacing = 2.0 ** (np.maximum(exponent - 1, -6) - 3)
    magnitude = np.round(magnitude / spacing) * spacing
    bits = np.searchsorted(VALUES[:127], np.nan_to_num(magnitude)).astype(np.uint8)
    bits = np.where(np.isnan(x), 0x7F, bits)
    return (bits | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)


def dequantize(bits, descale=1.0):
    """What e4m3 bits (uint8) mean, as float32: value * descale. descale broadcasts against bits: for one a KV
    head in a cache (blocks, block_size, kv_heads, dim) give it the shape (kv_heads, 1)."""
    bits = np.asarray(bits)
    if bits.dtype != np.uint8:
        raise ValueError(f"bits must be uint8, the bits of e4m3 numbers, got dtype {bits.dtype}")
    return VALUES[bits] * np.asarray(descale, np.float32)
