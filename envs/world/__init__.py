"""The embedded world: a fictional world in natural English, made from one seed, in which every step can be checked.

names -> facts -> passages and questions are what is made; guesses measure how far a policy gets without searching; the
vocabulary serves tiny models; the oracle judges episodes; the teacher writes them.
"""
