"""The health check of a worker: :mod:`goondan_tasks.programs.worker_check`, by its public path."""

from goondan_tasks.programs.worker_check import main

if __name__ == "__main__":
    main()
