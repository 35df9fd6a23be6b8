"""Creates the bucket of PERSIST_BLOB_URI, unless it exists; waits up to a minute for the store."""

import os
import sys
import time
import urllib.parse

import boto3
from botocore.exceptions import BotoCoreError, ClientError

MAX_TRIES = 30  # one every two seconds

uri = urllib.parse.urlsplit(os.environ["PERSIST_BLOB_URI"])
endpoint = urllib.parse.parse_qs(uri.query)["endpoint"][0]
client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
for left in reversed(range(MAX_TRIES)):
    try:
        client.create_bucket(Bucket=uri.netloc)
        sys.exit(0)
    except client.exceptions.BucketAlreadyOwnedByYou:
        sys.exit(0)
    except (BotoCoreError, ClientError) as error:
        if not left:
            sys.exit(f"{endpoint}: no bucket {uri.netloc}: {error}")
    time.sleep(2)  # noqa: TID251 - runs in a container that has no clock to inject
