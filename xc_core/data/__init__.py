"""Datasets: from a folder of text to documents, labels, tokens and batches."""
