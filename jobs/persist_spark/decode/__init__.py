"""From input files to the records frame, one module for each format."""
