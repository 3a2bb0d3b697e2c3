"""What stands between a pooled vector and its normalisation.

Takes: widths.        Gives: modules.
May import: nothing.  Never: normalises (the encoder does, once).
"""

from __future__ import annotations

from torch import nn


def projection_head(width: int, projection: int) -> nn.Module:
    """Return a bias-free linear map from ``width`` to ``projection``, or the identity where that is 0."""
    if not projection:
        return nn.Identity()
    head = nn.Linear(width, projection, bias=False)
    nn.init.orthogonal_(head.weight)
    return head
