"""The stages of the pipeline, one module each: ``run`` builds the stage's artefact from its inputs and settings."""
