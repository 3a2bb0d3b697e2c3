"""Fuzzing of every reader: random changes of good input, and what failed once, replayed."""
