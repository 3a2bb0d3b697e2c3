"""A generator depends on root seed, purpose and place only: not on earlier draws, and not on the process."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from xc_core.seeds import derive, generator, seed_torch, torch_generator

PLACES = st.tuples(st.integers(0, 2**31), st.sampled_from(["order", "dropout", "orde"]), st.integers(0, 9))


def test_seeds_never_change() -> None:
    """A change of these numbers changes every trained model."""
    assert derive(0, "order", 3) == 5486038029339273987
    assert derive(1, "dropout", 0, 7) == 5720963267920704783


@given(st.lists(PLACES, min_size=2, max_size=8, unique=True))
@settings(deadline=None, max_examples=50)
def test_other_places_have_other_seeds_within_63_bits(places: list[tuple[int, str, int]]) -> None:
    seeds = [derive(*place) for place in places]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_purpose_and_place_are_separated() -> None:
    assert derive(0, "a", 1, 2) != derive(0, "a", 12)
    assert derive(0, "a", 1) != derive(0, "a1")
    assert derive(1, "a") != derive(0, "1a")


def test_a_generator_does_not_depend_on_earlier_draws() -> None:
    expected = generator(3, "order", 1).random(4), torch.rand(4, generator=torch_generator(3, "dropout", 1))
    np.random.default_rng().random(7)
    torch.rand(7)
    generator(3, "order", 0).random(7)
    assert np.array_equal(generator(3, "order", 1).random(4), expected[0])
    assert torch.equal(torch.rand(4, generator=torch_generator(3, "dropout", 1)), expected[1])


def test_the_global_generator_of_torch_can_be_seeded() -> None:
    seed_torch(3, "weights")
    first = torch.rand(3)
    seed_torch(3, "weights")
    assert torch.equal(torch.rand(3), first)
    seed_torch(4, "weights")
    assert not torch.equal(torch.rand(3), first)


def test_a_seed_is_the_same_in_another_process() -> None:
    """Python's own hash of a string is not."""
    code = "from xc_core.seeds import derive; print(derive(5, 'order', 1, 2))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == derive(5, "order", 1, 2)


def test_deriving_a_seed_imports_no_torch() -> None:
    code = "import sys, xc_core.seeds as s; s.generator(0, 'x').random(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
