"""Read evidence of a running or a dead job without PyTorch: snapshots of the allocator, and error messages.

`pickles` reads an untrusted pickle; `snapshots` finds what lived at the peak, and which line asked for it; `messages` reads
the numbers in an error's text; `reports` has messages that people reported.
"""

from .messages import Message, message
from .pickles import Refused
from .reports import Report, reports
from .snapshots import Memory, Snapshot, snapshot

__all__ = ["Memory", "Message", "Refused", "Report", "Snapshot", "message", "reports", "snapshot"]
