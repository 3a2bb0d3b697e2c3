"""Releasing models: versions in the MLflow registry, the gate, promotion by hand, the served model.

The champion is the version that is served. The gate makes a new version champion unless it is clearly worse.
"""
