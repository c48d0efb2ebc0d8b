"""The exercises of each chapter: `cNN.py` has a list EXERCISES."""
