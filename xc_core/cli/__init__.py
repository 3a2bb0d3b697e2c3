"""The one command line: ``xc``."""
