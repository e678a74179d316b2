"""Errors of the session store.

SessionStoreError          `code` is the code of the refusal that it becomes
├── CursorError            a cursor that this store did not give out
├── NotFoundError          no such row of this owner
├── ConflictError          an id with other content
├── ParentError            a parent that is not in this session
├── RangeError             a range that no summary can cover
├── MessageTooLargeError   over what a row may hold
├── QueryError             a search without a word in it
├── ReadonlyError          a block that nobody writes
├── OverLimitError         a block over its token limit
└── WrongKindError         a block of another kind
RuntimeError
└── SchemaTooNewError      the database was written by a newer version
"""

from typing import ClassVar


class SessionStoreError(ValueError):
    """What was asked cannot be done."""

    code: ClassVar[str]


class CursorError(SessionStoreError):
    """This cursor was not given out here: start again without one."""

    code = "bad_cursor"

    def __init__(self) -> None:
        super().__init__(str(self.__doc__))


class NotFoundError(SessionStoreError):
    """Nothing of that name belongs to the one who asks."""

    code = "not_found"


class ConflictError(SessionStoreError):
    """The id is taken by other content."""

    code = "conflict"


class ParentError(SessionStoreError):
    """The parent is not in this session."""

    code = "bad_parent"


class RangeError(SessionStoreError):
    """No summary can cover that range."""

    code = "bad_range"


class MessageTooLargeError(SessionStoreError):
    """Over what a row may hold."""

    code = "too_large"


class QueryError(SessionStoreError):
    """There is no word to search for."""

    code = "bad_query"


class ReadonlyError(SessionStoreError):
    """The block is not written by anybody."""

    code = "readonly"


class OverLimitError(SessionStoreError):
    """The block would pass its token limit."""

    code = "over_limit"


class WrongKindError(SessionStoreError):
    """The block is of another kind."""

    code = "wrong_kind"


class SchemaTooNewError(RuntimeError):
    """The database was written by a newer version of agent-coder."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"the session store's database has schema {found}, this version knows {known}: install the newer version, "
            "or point AGENT_CODER_DATABASE_URL at another database (runs are read anew from the journals, conversations are not)"
        )
