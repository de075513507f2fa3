"""Precision, random generators and allocators of each device."""
