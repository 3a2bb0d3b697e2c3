"""xc_core: extreme classification as a library; knows nothing of Dagster, MLflow or DVC.

Reading order, which is also the order of the ranks (a room imports only rooms of lower rank):

0. ``shapes errors plugins seeds progress artifacts pretrained distributed``
1. ``data`` (folder of text to Parquet, labels, tokens, batches), ``metrics`` (numpy only)
2. ``encoders``, ``losses``, ``cluster``, ``ann`` (none imports another)
3. ``classifiers``, ``sampling``, ``fusion``
4. ``train`` and ``infer`` (neither imports the other)
5. ``recipes``, ``bundle``, ``stages``
6. ``cli``

Importing this package imports nothing heavy.
"""

__version__ = "0.1.0"
