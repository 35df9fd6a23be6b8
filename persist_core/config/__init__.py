"""Users' YAML files: collections, views, their common fields; errors name the file, field and remedy."""
