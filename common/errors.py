"""Errors that are shown to the user as one line: what is wrong, where, and what to do."""


class UserError(Exception):
    """A problem that the user can solve; shown without a traceback."""


class ConfigError(UserError):
    """A setting is wrong."""


class DataError(UserError):
    """An input file is missing, malformed or empty; names the file and, if there is one, the line."""


class RetrievalError(UserError):
    """A retriever is down, too slow or returns invalid responses, after its retries."""


class RejectedError(RetrievalError):
    """A retriever is up and rejects a request: others, or a part of it, may pass."""


class EngineError(UserError):
    """An engine that samples rejects a request, gives what cannot be used, or is gone for good."""


class ToolError(UserError):
    """A tool has no answer to a query: the policy is shown why, and its episode continues."""
