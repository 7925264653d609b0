"""Arrays become statistics that merge exactly, kept in the calibration artifact. Never a decision."""
