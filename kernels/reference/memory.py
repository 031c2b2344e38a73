"""How much memory a call needs, measured and not reckoned."""

import tracemalloc


def peak_bytes(function, *args, **kwargs):
    """Call function(*args, **kwargs) and return (its result, peak), peak in bytes.

    The peak counts what Python and NumPy allocated during the call and had alive at one time, results
    included and arguments excluded. Tracing slows the call: measure time elsewhere. Memory that other
    libraries allocate for themselves (a BLAS work space, a GPU) is not seen.
    """
    was_tracing = tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        result = function(*args, **kwargs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        if not was_tracing:
            tracemalloc.stop()
    return result, max(0, peak - before)
