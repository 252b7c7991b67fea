"""Engines: where a placed run works. The contract, the run's directory, the wrapper, and the engine `local`."""
