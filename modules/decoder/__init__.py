"""The forward pass for sampling in this process."""
