"""What a user describes in YAML: collections, views, their common fields; errors name the file, field and remedy."""
