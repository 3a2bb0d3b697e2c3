"""How label trees are trained. Answers need none of this, nor numba."""
