"""Cards run in Node as in a browser."""

from javascript import node  # noqa: F401
