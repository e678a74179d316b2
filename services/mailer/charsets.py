"""Bytes of a mail as text, in any charset that Python knows and mail may be written in."""

import codecs

_ALIASES = {
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "x-gbk": "gb18030",
    "gb2312-80": "gb18030",
    "x-sjis": "cp932",
    "shift_jis": "cp932",
    "windows-31j": "cp932",
    "windows-874": "cp874",
    "ks_c_5601-1987": "cp949",
    "euc-kr": "cp949",
    "iso-8859-8-i": "iso-8859-8",
    "iso-8859-6-i": "iso-8859-6",
    "big5": "big5hkscs",
    "iso-2022-jp": "iso2022_jp_ext",
}
_NO_CHARSETS = frozenset({"idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "utf-7", "mbcs", "oem"})


def decode(content: bytes, charset: str) -> str:
    """`content` as text: in its charset when that is known, else as UTF-8, else as Windows-1252. What does not fit is replaced."""
    name = charset.strip().strip("\"'").lower()[:40]
    if name in ("", "us-ascii", "ascii", "utf-8", "utf8", "unknown-8bit", "8bit", "default_charset"):
        return _utf8(content)
    try:
        codec = codecs.lookup(_ALIASES.get(name, name))
        if codec.name in _NO_CHARSETS:
            return _utf8(content)
        return content.decode(codec.name, "replace")
    except (LookupError, ValueError):  # also a codec that is none of text, or a name with a NUL
        return _utf8(content)


def _utf8(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("utf-8" if _mostly_utf8(content) else "cp1252", "replace")


def _mostly_utf8(content: bytes) -> bool:
    """Whether most of what is no ASCII is whole UTF-8: a text that was cut in the middle of a character, say."""
    text = content.decode("utf-8", "replace")
    return text.count("�") * 4 < sum(1 for c in text if ord(c) > 127)
