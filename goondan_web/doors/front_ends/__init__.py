"""What the doors for front ends share: runs, which are Turns and what follows from approvals, as streams."""
