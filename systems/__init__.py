"""Systems, one a folder: code that only this system needs. Nothing imports this room, and no system imports another."""
