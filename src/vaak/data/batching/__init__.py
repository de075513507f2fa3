"""Which examples make up which batch: fixed, bucketed, packed or stratified. Start with planner.py."""
