"""A listener of ended calls, which does nothing."""

from goondan_tasks.extension_api import ExtensionApi


def register(api: ExtensionApi) -> None:
    api.events.on("toolCall.completed", lambda event: None)
