#!/bin/sh
# The root account's keys by file.
set -eu
ROOT_ACCESS_KEY=$(cat "$ROOT_ACCESS_KEY_FILE")
ROOT_SECRET_KEY=$(cat "$ROOT_SECRET_KEY_FILE")
export ROOT_ACCESS_KEY ROOT_SECRET_KEY
exec versitygw --port :7070 --quiet --keep-alive posix /data
