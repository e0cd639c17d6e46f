"""One check of a GPU: tests, kernels, decoding, updates, memory and sharding, each part in a process with a limit."""
