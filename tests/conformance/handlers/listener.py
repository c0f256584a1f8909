"""Listeners of each call, which only hear of it."""

from goondan_tasks.authoring.extension_api import ExtensionApi


def register(api: ExtensionApi) -> None:
    heard: list[object] = []
    api.events.on("tool.called", heard.append)
    api.events.on("tool.completed", heard.append)
