"""What can be read: file drops today. Each source freezes a range of input, names it, and moves its frontier past it.

path_pattern    `source.path` -> root, glob, date
files           scan -> Freeze(frozen input, changed, unmatched, left), and the frontier after it
ledger          which files were consumed: content-addressed segments in blob storage
"""
