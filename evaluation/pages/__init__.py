"""Pages of results: runs frozen as JSON, and the tables and figures that are made of them."""
