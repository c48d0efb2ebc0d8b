"""What is asked for: the setup of a step, the mesh of its GPUs, what a model is aligned for."""
