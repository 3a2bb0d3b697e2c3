"""Asset negatives: hard negatives, and how many of them batches hold (M2).

Takes: the artefacts this stage reads.   Gives: the artefact negatives.
May import: assets.station, assets.metadata.   Never: computes.
"""

from __future__ import annotations

from assets.station import station

negatives = station("negatives", kinds={"faiss", "numpy"})
