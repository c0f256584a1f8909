"""The claims of calls: taken, looked after while their runs last, ended."""
