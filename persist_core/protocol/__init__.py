"""The write protocol as plain functions: its stages, the loop over them, conflicts, restore and fork."""
