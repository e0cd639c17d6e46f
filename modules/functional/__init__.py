"""Pure tensor functions: no state, no Lightning, tested with literal numbers."""
