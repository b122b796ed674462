"""Run + finding -> a bundle that a vendor's engineer can use alone."""
