"""Dropout on document vectors, which a classifier is trained with; the random numbers come from the caller."""

from __future__ import annotations

import torch
from torch import Tensor

from xc_core.devices import put


def dropped(doc_BD: Tensor, share: float, random: torch.Generator) -> Tensor:
    """Return ``doc_BD`` with a ``share`` of the coordinates set to zero and the rest scaled up by 1 / (1 - share).

    ``random`` is a generator on the CPU. The gradient of a coordinate that was set to zero is zero.
    """
    if not share:
        return doc_BD
    keep = torch.rand(doc_BD.shape, generator=random) >= share
    return doc_BD * put(keep.numpy(), doc_BD.device) / (1 - share)
