"""Rewards: functions of finished episodes, one a file. `terms.combine` adds them up with their weights."""
