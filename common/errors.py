"""Errors for people: one line that says what is wrong, where, and what to do."""


class UserError(Exception):
    """Work cannot go on, for a reason the person at the keyboard can mend; shown without a traceback."""


class ConfigError(UserError):
    """A setting is wrong; found before any work."""


class DataError(UserError):
    """An input file is missing, malformed or empty; names the file and, where there is one, the line."""


class RetrievalError(UserError):
    """A retriever is down, too slow or answers nonsense, after its retries."""
