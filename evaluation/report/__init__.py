"""The page of a run: every step of its episodes, and whether it is true."""
