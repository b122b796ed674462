"""The distributed multi-GPU collective rounding auditor.

Importing this package loads no vendor library, no h5py and no numba; see DESIGN: layers.
"""

__version__ = "0.1.0"
