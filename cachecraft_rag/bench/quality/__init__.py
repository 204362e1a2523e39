"""How near to full prefill the answers are, and at which share of its work."""
