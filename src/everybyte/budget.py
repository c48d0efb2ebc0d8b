Budget = budget = None
