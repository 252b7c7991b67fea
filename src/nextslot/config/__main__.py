"""`python -m nextslot.config` prints the tables of docs/configuration.md, generated from the declarations."""

import sys

from .fields import tables

sys.stdout.write(tables())
