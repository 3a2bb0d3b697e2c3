"""Asset corpus: a folder of text as Parquet.

Takes: the artefacts this stage reads.   Gives: the artefact corpus.
May import: assets.station, assets.metadata.   Never: computes.
"""

from __future__ import annotations

from assets.station import station

corpus = station("corpus", kinds={"polars", "parquet"})
