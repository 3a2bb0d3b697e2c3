"""The propensity model of Jain et al. (KDD 2016): the probability that a relevant label is annotated."""

from __future__ import annotations

import numpy as np

from xc_core.errors import ConfigError
from xc_core.plugins import Table
from xc_core.shapes import F64, I64

PROPENSITY: Table[tuple[float, float]] = Table("propensity model")
# Constants (A, B) of the Extreme Classification Repository.
PROPENSITY.add("default", (0.55, 1.5))
PROPENSITY.add("wikipedia", (0.5, 0.4))
PROPENSITY.add("amazon", (0.6, 2.6))


def inverse_propensity(frequency_L: I64, num_documents: int, constants: tuple[float, float]) -> F64:
    """Return 1 / p_l = 1 + C (n_l + B)^-A with C = (ln N - 1)(B + 1)^A, for each of L labels.

    ``frequency_L`` and ``num_documents`` (N) belong to the published binary train matrix. For N < 3, C would be
    negative and a propensity above 1; C is then 0, so every label has weight 1. Raises ConfigError if N is 0.
    Source: Jain, Prabhu, Varma, KDD 2016, section 4, equation of p_l.
    """
    if num_documents < 1:
        raise ConfigError("no train documents", expected="at least one", do="check the train split")
    a, b = constants
    c = max(np.log(num_documents) - 1, 0.0) * (b + 1) ** a
    return np.asarray(1 + c * (frequency_L + b) ** -a, np.float64)
