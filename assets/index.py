"""Asset index: search indexes.

Takes: the artefacts this stage reads.   Gives: the artefact index.
May import: assets.station, assets.metadata.   Never: computes.
"""

from __future__ import annotations

from assets.station import station

index = station("index", kinds={"faiss"})
