"""The reference set: attention in NumPy (`kernels.reference`) and in Triton (`kernels.triton`).

Importing `kernels` imports neither, so that the NumPy part works where Triton has no wheels.
"""
