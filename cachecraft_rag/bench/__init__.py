"""Measurements, each reported as ratios of things that ran side by side in one run."""
