"""How Dagster runs the steps of a job."""

from __future__ import annotations

import dagster as dg

EXECUTOR = dg.in_process_executor
"""Each stage already runs in a process of its own (Pipes), so the steps of a run share one process."""
