"""What a running or a dead job left behind, read without PyTorch: snapshots of the allocator, and messages.

`pickles` reads a file that may come from anybody; `snapshots` says what lived when the most did, and whose it was; `messages` reads
the text of an error into numbers; `reports` has messages that people met.
"""

from .messages import Message, message
from .pickles import Refused
from .reports import Report, reports
from .snapshots import Memory, Snapshot, snapshot

__all__ = ["Memory", "Message", "Refused", "Report", "Snapshot", "message", "reports", "snapshot"]
