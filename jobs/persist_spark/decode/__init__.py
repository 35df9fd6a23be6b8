"""Make the records frame of input files, one module for each format."""
