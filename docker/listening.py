"""Exit code 0 if the port of this container (LISTENS_ON, default 15002: the Connect server) accepts connections."""

import os
import socket

socket.create_connection((socket.gethostname(), int(os.environ.get("LISTENS_ON", "15002"))), timeout=4).close()
