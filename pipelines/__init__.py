"""Dagster definitions: jobs, schedules and sensors of the assets; the commands ``xc ui`` and ``xc demo``."""
