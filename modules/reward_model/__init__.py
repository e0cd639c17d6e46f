"""The process reward model: the model, its training, its features and its calibration."""
