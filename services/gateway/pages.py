"""The two small pages that a link of a mail shows: without scripts, everything from outside escaped. Pure."""

from html import escape

from libs.contracts.mail import DecisionView
from services.gateway.problems import Problem

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Robots-Tag": "noindex",
}
_STYLE = (
    "body{font:1rem/1.5 system-ui,sans-serif;max-width:40rem;margin:3rem auto;padding:0 1rem;color-scheme:light dark}"
    "button{font:inherit;padding:.5rem 1.5rem}blockquote{margin:1rem 0;padding-left:1rem;border-left:3px solid;white-space:pre-wrap}"
)
_ASKS = {"approve": "Approve this?", "deny": "Deny this? The run ends.", "unsubscribe": "Send no more mail to this address?"}
_WORDS = {"approve": "Yes, approve", "deny": "Yes, deny", "unsubscribe": "Yes, no more mail"}


def decision_page(view: DecisionView) -> str:
    """The question with one button; or what came of it."""
    quoted = f"<blockquote dir='auto'>{escape(view.question)}</blockquote>" if view.question else ""
    about = f"<p>Run {escape(view.run_id)}, for {escape(view.recipient)}</p>"
    if view.done is not None:
        return _page(view.title, f"{quoted}<p><strong dir='auto'>{escape(view.done)}</strong></p>{about}")
    button = f"<form method='post'><button>{_WORDS[view.action]}</button></form>"
    return _page(view.title, f"{quoted}<p>{_ASKS[view.action]}</p>{button}{about}")


def problem_page(problem: Problem) -> str:
    """Why a link does not work, and what to do."""
    return _page("This link does not work", f"<p dir='auto'>{escape(problem.detail)}</p><p>{escape(problem.next_step)}</p>")


def _page(title: str, content: str) -> str:
    shown = escape(title)
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><meta name='viewport' content='width=device-width'>"
        f"<title>{shown}</title><style>{_STYLE}</style></head><body><h1 dir='auto'>{shown}</h1>{content}</body></html>"
    )
