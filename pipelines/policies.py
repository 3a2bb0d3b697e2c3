"""The policies of all runs in one place.

Takes: nothing.           Gives: the executor.
May import: dagster.      Never: a policy hidden in an asset.
"""

from __future__ import annotations

import dagster as dg

EXECUTOR = dg.in_process_executor
"""Each station's work is a process of its own already (Pipes), so a run needs no second layer of processes."""
