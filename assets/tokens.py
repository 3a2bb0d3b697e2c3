"""Asset tokens: ragged token stores.

Takes: the artefacts this stage reads.   Gives: the artefact tokens.
May import: assets.station, assets.metadata.   Never: computes.
"""

from __future__ import annotations

from assets.station import station

tokens = station("tokens", kinds={"huggingface", "numpy"})
