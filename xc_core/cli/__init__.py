"""The command line ``xc``."""
