"""Models, losses, rewards and measures."""
