"""Evaluates a grid: plan, mesh, and the walk over its blocks."""
