"""Building an exact index needs no memory that grows with the number of labels."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.bounded import bounded
from xc_core.ann import Exact
from xc_core.errors import ConfigError


def million_labels() -> Callable[[], None]:
    """Build over 1 M labels x 64."""
    vectors = np.ones((1_000_000, 64), np.float32)

    def build() -> None:
        assert Exact().build(vectors).size == 1_000_000

    return build


def test_a_million_labels_are_checked_block_by_block() -> None:
    bounded(million_labels, megabytes=16)


def test_a_number_that_is_not_finite_is_found_in_the_last_block() -> None:
    vectors = np.ones((10_000, 4), np.float32)
    vectors[-1, -1] = np.nan
    with pytest.raises(ConfigError, match="not finite"):
        Exact().build(vectors)
