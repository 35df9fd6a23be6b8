"""What a user describes in YAML: collections, views, what both have, and errors that name file, field and remedy."""
