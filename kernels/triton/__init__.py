"""Attention kernels in Triton, for GPUs, and for CPUs under its interpreter (TRITON_INTERPRET=1)."""

try:
    import triton  # noqa: F401
except ImportError:
    raise ImportError(
        "kernels.triton needs Triton, which has wheels for Linux alone: use Colab, the dev container or WSL"
    ) from None
