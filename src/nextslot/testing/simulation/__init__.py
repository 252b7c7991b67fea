"""The whole scheduler on virtual time, from a seed, on a disk that fails: lives that must keep every law."""
