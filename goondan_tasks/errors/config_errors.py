"""What keeps a program from starting."""

from goondan_tasks.errors.goondan_error import GoondanError


class ConfigError(GoondanError):
    """The bundle or the configuration is not valid."""

    code = "E_CONFIG_SCHEMA_INVALID"
    suggestion = "Run `goondan validate` for every finding, with file and line."


class ExtensionLoadError(ConfigError):
    """The file of an extension cannot be loaded."""

    code = "E_EXT_LOAD"
    suggestion = "Correct the file; `goondan validate` finds such faults before a worker does."


class ExtensionInitError(ConfigError):
    """The `register` of an extension failed."""

    code = "E_EXT_INIT"
    suggestion = "Correct the extension or its config, or take it out of the Agent's `extensions`."


class BundleRevisionUnavailableError(GoondanError):
    """This machine does not have that revision of the bundle, and cannot get it."""

    code = "E_BUNDLE_REVISION_UNAVAILABLE"
    suggestion = (
        "Push the commit to the remote that GOONDAN_BUNDLE_REMOTE names, and set it on every machine."
    )
