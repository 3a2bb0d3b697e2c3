"""Training of encoders and label tables: one loop that logs, saves checkpoints and resumes a killed training."""
