"""Blobs and consensus in S3."""
