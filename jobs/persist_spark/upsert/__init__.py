"""The write stage of a collection: records become insertions and retractions."""
