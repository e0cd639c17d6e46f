"""LongLLMLingua: passages ranked and thinned by what a language model expects of them and of the question."""
