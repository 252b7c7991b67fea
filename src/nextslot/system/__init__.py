"""Services of the machine: time, randomness, disk space, the watchdog and the sidecar process."""
