"""vLLM as a sampler: an engine in an environment of its own, started, fed and watched from here."""
