"""What a killed server runs as a command: writes down that it began, as `server_jobs.tiny` does, and takes a moment."""

import os
import sys
import time

if __name__ == "__main__":
    file = os.open(f"{sys.argv[1]}/executions", os.O_WRONLY | os.O_APPEND)
    os.write(file, f"{os.environ['NEXTSLOT_JOB_ID']} {os.environ['NEXTSLOT_RUN_ID']}\n".encode())
    time.sleep(0.05)
