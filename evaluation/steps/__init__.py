"""Quality of a reward that ranks steps: AUC, calibration, agreement with the truth."""
