"""Exit code 0 if Airflow's health page calls the component of this container healthy.

HEALTH_URL        the page of the API server (default: this container's)
HEALTH_COMPONENT  scheduler, dag_processor, triggerer; without it the page itself has to answer
"""

import json
import os
import sys
import urllib.request

url = os.environ.get("HEALTH_URL", "http://127.0.0.1:8080/api/v2/monitor/health")
component = os.environ.get("HEALTH_COMPONENT", "metadatabase")
try:
    with urllib.request.urlopen(url, timeout=8) as answer:
        status = json.load(answer)[component]["status"]
except (OSError, ValueError, KeyError) as error:
    sys.exit(f"{url}: {error!r}")
if status != "healthy":
    sys.exit(f"{component}: {status}")
