"""The page for shards in Airflow's UI (docs/page.md).

    browser --GET--> FastAPI app (Airflow 3.x only) --Access--> Site --> persist_core.inspection -> JSON
       ^                                                              |
       +-- static/: HTML, CSS and JavaScript without data             +--> metadata: DAGs, dag runs, schedules

1. Read-only: there is no endpoint that changes anything. Actions are dag runs, which Airflow's own pages trigger.
2. No fact leaves without a check of Airflow's roles (`site.Access`). The static files hold no facts.
3. Facts reach the browser as JSON only, and the page puts them into text nodes and attributes, never into markup.
4. Every URL is relative, so that a base path and a reverse proxy need no configuration.
"""
