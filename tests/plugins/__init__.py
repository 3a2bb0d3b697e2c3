"""A small package with one part of every family, as somebody outside this project would write it."""
