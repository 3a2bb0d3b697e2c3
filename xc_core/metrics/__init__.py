"""Judging shortlists: numpy only."""
