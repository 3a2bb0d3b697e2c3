"""The policies of all runs in one place.

Takes: nothing.           Gives: the executor, freshness, automation.
May import: dagster.      Never: a policy hidden in an asset.
"""

from __future__ import annotations

import dagster as dg

EXECUTOR = dg.in_process_executor
"""Each station's work is a process of its own already (Pipes), so a run needs no second layer of processes."""

NEW_CONTENT = (
    dg.AutomationCondition.any_deps_match(dg.AutomationCondition.data_version_changed()).since_last_handled()
    & ~dg.AutomationCondition.any_deps_missing()
    & ~dg.AutomationCondition.in_progress()
    & dg.AutomationCondition.all_deps_blocking_checks_passed()
)
"""True when an input has new content that passed its checks. Dagster's ``eager`` fires on equal content, and on bad."""
