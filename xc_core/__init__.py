"""Extreme classification as a library, without Dagster, MLflow or DVC. Importing this package imports nothing heavy.

The layers, lowest first; a package imports only from the layers below it: the single modules beside this file;
``data``; ``metrics``; ``encoders``, ``losses``, ``cluster`` and ``ann``; ``sampling``; ``classifiers``; ``scores`` and
``fusion``; ``train`` and ``infer``; ``recipes``; ``chain``; ``stages``; ``cli``.
"""

__version__ = "0.3.0"
