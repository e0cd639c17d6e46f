"""How well a reward ranks steps: AUC, calibration, agreement with the truth."""
