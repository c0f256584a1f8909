"""The root of the error tree."""


class GoondanError(Exception):
    """Something went wrong in Goondan Workers."""

    code: str = "E_GOONDAN"
    suggestion: str | None = None
    #: a handler may point at a page of its own; errors of ours get theirs from ``HELP_URL + code``
    help_url: str | None = None

    def __init__(
        self, message: str | None = None, *, code: str | None = None, suggestion: str | None = None
    ) -> None:
        self.message = message or (type(self).__doc__ or type(self).__name__).splitlines()[0]
        super().__init__(self.message)
        if code is not None:
            self.code = code
        if suggestion is not None:
            self.suggestion = suggestion
