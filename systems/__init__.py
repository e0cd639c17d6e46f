"""Systems, one a folder: what is a system's alone. Nothing imports this room, and no system imports another."""
