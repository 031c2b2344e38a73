"""Our kernels beside the ones that are installed, on a GPU: `python -m kernels.bench`."""
