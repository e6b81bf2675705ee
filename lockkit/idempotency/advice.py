"""What a refusal says to somebody with a browser, who has no code to read and no ID to repeat."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from lockkit.idempotency import replies

if TYPE_CHECKING:
    from lockkit.idempotency.replies import Reject

__all__ = ["advice", "page"]

AGAIN = "Then reload this page, and let your browser send the form again"
NOT_TWICE = ": nothing is ordered twice by that."
NEW_FORM = "Go back, load the page with the form again, and send it from there."
_ADVICE = {
    "order-form-expired": NEW_FORM,
    "order-form-of-another": "Load the page with the form again, and keep it open in one tab only, "
    "with cookies allowed.",
    "order-id-malformed": NEW_FORM,
    "order-id-missing": NEW_FORM,
    "order-id-reused": NEW_FORM,
    "order-completed": "Look at your orders before you order again.",
    "order-orphaned": "Do not order again before you have asked.",
    "order-without-owner": "Log in or allow cookies, then load the page with the form again.",
}

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
</head>
<body>
<h1>{title}</h1>
{paragraphs}
</body>
</html>
"""


def advice(reject: Reject) -> str:
    """What to do now, in a sentence or two; may be empty."""
    if reject.retry_after is None:
        return _ADVICE.get(reject.code, "")
    unit = "second" if reject.retry_after == 1 else "seconds"
    promise = "." if reject.code == replies.UNKNOWN else NOT_TWICE  # its own text says it, or not
    return f"Please wait {reject.retry_after} {unit}. {AGAIN}{promise}"


def page(reject: Reject) -> str:
    """A whole page of HTML, for an application that has no template of its own."""
    paragraphs = [f"<p>{escape(text)}</p>" for text in (reject.detail, advice(reject)) if text]
    if reject.location is not None:
        paragraphs.append(f'<p><a href="{escape(reject.location)}">Your order</a></p>')
    return _PAGE.format(title=escape(reject.title), paragraphs="\n".join(paragraphs))
