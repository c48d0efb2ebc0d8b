"""A step as a value, whoever says it: its operations in order, their one reader, and what all witnesses give."""
