"""Compares fast code with what it replaces, on real data: ``python -m benchmarks --help``."""

import torch  # noqa: F401  before faiss, as in xc_core.ann
