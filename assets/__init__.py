"""The stations of the chain as Dagster assets: one a file, each finds its paths, runs one stage, reports."""
