"""The least recompute ratio that is good enough for a user's own chunks, found and kept beside their caches."""
