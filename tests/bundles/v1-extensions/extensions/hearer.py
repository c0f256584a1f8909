"""Logs what the tool-logger tells."""


def register(api):
    def hear(event):
        api.logger.warn("heard", event["toolName"], event["error"].message)

    api.events.on("tool.error", hear)
