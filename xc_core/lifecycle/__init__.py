"""What happens to a dataset after its first ingest: new files, updates, new labels, drift, deletion of rows or all."""
