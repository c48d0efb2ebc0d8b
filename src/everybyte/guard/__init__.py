"""What a change costs: a peak kept to the byte, two of them line by line, and the commit that moved it.

`kept` keeps a rehearsal, a budget or a dry run as lines with their bytes, and compares two of them; `checked` is what a test asserts of;
`commits` rehearses commits of a git repository in a copy of it; `comment` writes what is found for a pull request.
"""

from .checked import Checked, Size
from .comment import comment
from .commits import Found, Moved, bisect, diff
from .kept import Change, Kept, Line

__all__ = ["Change", "Checked", "Found", "Kept", "Line", "Moved", "Size", "bisect", "comment", "diff"]
