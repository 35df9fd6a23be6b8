"""Alerts: conditions of shards that are not as they should be, and which notices are sent.

    facts (Health) + rules (Threshold) + what is open --evaluate--> alerts and notices
                                                          |  one compare-and-set of the record
    notices that are not sent --claim--> send --settle--> gone

1. An alert is opened when its condition crosses `warn` or `fail`, raised once from warn to fail, and resolved once.
2. Alerts and the notices about them change together, in one record of the location, by compare-and-set. So two
   watchers never make two notices of one change.
3. A notice is claimed before it is sent, so two watchers never send it twice. A watcher that dies after sending and
   before it has settled makes the next one send it again: at least once.
4. A notice stays in the record until each notifier has taken it.

Neither Airflow nor notifiers: `persist_airflow.watch` has those.
"""
