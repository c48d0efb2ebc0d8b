"""The subjects of `tools/fuzz.py`, by area: each draws an input, gives it to the library, and holds what comes back against a
second way to compute it. The number beside each is its share of the inputs.
"""

from . import commands, evidence, files, pages, steps, values

SUBJECTS = values.SUBJECTS | steps.SUBJECTS | files.SUBJECTS | evidence.SUBJECTS | commands.SUBJECTS | pages.SUBJECTS
