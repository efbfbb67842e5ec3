"""Sentences of a case, taken apart."""


def split(text: str, separator: str) -> list[str]:
    """Parts of a text, divided where no bracket and no quotation mark is open."""
    parts, depth, quoted, start = [], 0, "", 0
    for at, letter in enumerate(text):
        if quoted:
            quoted = "" if letter == quoted else quoted
        elif letter in "\"'":
            quoted = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif depth == 0 and text.startswith(separator, at):
            parts.append(text[start:at].strip())
            start = at + len(separator)
    return [*parts, text[start:].strip()]
