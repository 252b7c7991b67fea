"""Engines, on which placed runs work: the contract, the directory of a run, the wrapper, and the engine `local`."""
