"""Steps whose GPUs divide more than the batch: what is beside the reference's own step, written to be read."""
