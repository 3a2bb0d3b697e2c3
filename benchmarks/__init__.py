"""What is fast, beside what it replaces, on real data: ``python -m benchmarks --help``.

Takes: artefacts of a trained experiment.  Gives: a Markdown table of ratios.
May import: everything, tests.naive.       Never: compares times of two processes.
"""

import torch  # noqa: F401  before faiss, as in xc_core.ann
