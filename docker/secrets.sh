#!/bin/sh
# secrets.sh: random passwords and keys for compose.yaml, in docker/secrets/, which only its owner can enter. It keeps
# those that exist. For a real deployment, put your own there. And the project's name, in docker/.env: by default it is
# the folder's, and projects of one name share their volumes. (Compose 1.29 refuses a name in compose.yaml.)
set -eu
cd "$(dirname "$0")"
mkdir -p secrets
chmod 700 secrets
random() { python3 -c 'import secrets; print(secrets.token_urlsafe(24))'; }
# put NAME VALUE: containers run as other users than the owner, so the files themselves are readable.
put() { [ -e "secrets/$1" ] || { printf '%s' "$2" >"secrets/$1" && chmod 644 "secrets/$1"; }; }

put postgres_password "$(random)"
put airflow_db_password "$(random)"
put persist_db_password "$(random)"
put airflow_database "postgresql+psycopg2://airflow:$(cat secrets/airflow_db_password)@postgres:5432/airflow"
put airflow_fernet_key "$(python3 -c 'import base64, os; print(base64.urlsafe_b64encode(os.urandom(32)).decode())')"
put airflow_jwt_secret "$(random)"
put airflow_secret_key "$(random)"
put airflow_passwords "{\"admin\": \"$(random)\"}"
put grafana_password "$(random)"
put s3_access_key_id "persist"
put s3_secret_access_key "$(random)"
# The master's REST server would take jobs without the secret.
put spark_properties "spark.authenticate true
spark.master.rest.enabled false
spark.authenticate.secret $(random)
"
grep -q '^COMPOSE_PROJECT_NAME=' .env 2>/dev/null || printf '\nCOMPOSE_PROJECT_NAME=airflow-persist\n' >>.env
echo "secrets are in $(pwd)/secrets; Airflow's login is in secrets/airflow_passwords"
