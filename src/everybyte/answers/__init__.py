"""What is decided from the witnesses: what fits, which plan, which layout, what is served, what happened."""
