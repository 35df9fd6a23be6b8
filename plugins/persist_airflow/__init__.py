"""The Airflow face: hook, operators, task-group factory, notifier, extra link, the embedded Airflow.

    collections/x.yaml --factory.build_dags--> DAG persist_upsert__x

      mint_batch_descriptions --description--> write_batches --manifest key--> append_batches --> checkpoint_manifest
           protocol.mint                        spark-submit                   protocol.append     protocol.checkpoint

What the reader may ignore here: whether a commit is correct. Every task may be killed and tried again at any point;
`persist_core.protocol.stages`, not Airflow, ensures that no update is doubled or lost.

This module imports nothing, so that Airflow can read `persist_airflow.provider` while it still configures itself.
"""
