"""What the scheduler takes from the machine: time, randomness, disk space, a watchdog and its small process."""
