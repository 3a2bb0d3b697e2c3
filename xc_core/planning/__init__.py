"""Estimates what a training costs before it runs: time, memory, disk (``xc plan``); epochs that fit (``--budget``)."""
