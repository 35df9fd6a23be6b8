"""A look at a feed before it is read: a sample of its files, what a run would make of it, and a collection file for it.

    files --take--> Sample --copied--> a folder --one Spark job, in a location of its own--> preview
                       '--rows--> fields, values --guess--> hints of a preview, or a proposed collection file

Nothing here writes to a user's location, and no run uses what is guessed here.
"""
