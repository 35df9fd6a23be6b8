#!/bin/bash
# Run once by the server's image: two databases, each with its own user. Airflow's metadata and our consensus store share
# one server here, and nothing else.
set -euo pipefail
for name in airflow persist; do
    psql --username postgres --set ON_ERROR_STOP=1 --set password="$(cat "/run/secrets/${name}_db_password")" <<SQL
CREATE ROLE $name LOGIN PASSWORD :'password';
CREATE DATABASE $name OWNER $name;
SQL
done
