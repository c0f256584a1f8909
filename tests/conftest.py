"""What every test gets: the check of the rules that tests show."""

pytest_plugins = ["tests.requirements.plugin"]
