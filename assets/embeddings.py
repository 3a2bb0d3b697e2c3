"""Asset embeddings: vectors of all documents and labels.

Takes: the artefacts this stage reads.   Gives: the artefact embeddings.
May import: assets.station, assets.metadata.   Never: computes.
"""

from __future__ import annotations

from assets.station import station

embeddings = station("embeddings", kinds={"pytorch", "numpy"})
