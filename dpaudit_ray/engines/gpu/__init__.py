"""What belongs to GPUs; all of it runs on any device, so that a CPU is its twin."""
