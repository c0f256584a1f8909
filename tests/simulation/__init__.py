"""Random walks over the ledger: the real scripts of the project under a virtual clock, with faults."""
