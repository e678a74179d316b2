"""Why an edit was refused. The texts are read by the model, so each says what to do next.

EditError
├── EditFailed   the text to change was not found, found more than once, or the edit itself is malformed
├── NotText      the file's bytes are not text; they are never rewritten
└── UnsafePath   the path leaves the workspace or reaches into git's own folder
"""


class EditError(Exception):
    """An edit was refused; no file has changed."""


class EditFailed(EditError):
    """The edit does not fit the file. Read the file again and repeat the edit with its present text."""


class NotText(EditError):
    """The file is not text, so it cannot be edited. Replace it with a command, or leave it alone."""

    def __init__(self, why: str) -> None:
        super().__init__(f"This file is not text ({why}). It was left as it is; produce it with a command if it must change.")


class UnsafePath(EditError):
    """The path is not a safe relative path inside the workspace."""
