"""ReAct: thoughts and actions in turns, the root of agents that search."""
