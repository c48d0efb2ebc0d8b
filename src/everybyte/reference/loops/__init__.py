"""Training loops, each by the name that `Setup.loop` has for it: a function that goes on step after step, and yields at each end.

They are written to be read, and run twice: by PyTorch (`running.py`), and by the theory's tape. What `run` does is the same
in all of them: `next_batch()` makes tokens and targets; `forward` gives the loss and what else the model returns; `at` is told the moments,
`end` the loss that the loop logs, which may be the last batch's.
What differs is what has a name, and until when: a variable keeps its tensors alive until it gets another value.
"""
