"""The stages of the pipeline as Dagster assets, their checks, and the release of models."""
