"""Drift: whether new data are like those of the calibration, beyond chance."""
