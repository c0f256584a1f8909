"""Child processes: guarded, spoken with, and ended with all they started."""
