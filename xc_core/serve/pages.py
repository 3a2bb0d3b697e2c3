"""The two pages of the server. Each is one document without external resources; only its own script and style run.

Their links are relative: a proxy may give the server a path of its own.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

_INLINE: Final = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #1c2430; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; vertical-align: top; padding: .3rem .6rem;
border-bottom: 1px solid #d8dee6; } code { background: #f1f4f8; padding: .1rem .3rem; border-radius: 3px; }
"""


@dataclass(frozen=True)
class HtmlPage:
    """A document, and the Content-Security-Policy to send with it."""

    html: str
    policy: str


@cache
def home() -> HtmlPage:
    """Return the page at /, where a person types a text and sees its labels."""
    return _page(resources.files("xc_core.serve").joinpath("page.html").read_text("utf-8"))


def described(openapi: dict[str, Any]) -> HtmlPage:
    """Return the page at /docs: an OpenAPI document in HTML."""
    parts = [_operation(path, method, about) for path, methods in openapi["paths"].items()
             for method, about in methods.items()]  # fmt: skip
    schemas = [_schema(name, schema) for name, schema in openapi["components"]["schemas"].items()]
    title, about = (html.escape(openapi["info"][name]) for name in ("title", "description"))
    return _page(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}: API</title>'
        f'<link rel="icon" href="data:,"><style>{_STYLE}</style></head><body><h1>{title}</h1><p>{about}</p>'
        f'<p>The same as <a href="openapi.json">OpenAPI</a>; <a href="./">try the model</a>.</p>'
        f"{''.join(parts)}<h2>Shapes</h2>{''.join(schemas)}</body></html>"
    )


def _page(text: str) -> HtmlPage:
    """Return a document with a policy that allows its own script and style, by their hashes, and requests to itself."""
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    sources = {kind: " ".join(digests) or "'none'" for kind, digests in hashes.items()}
    policy = (
        f"default-src 'none'; script-src {sources['script']}; style-src {sources['style']}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return HtmlPage(text, policy)


def _operation(path: str, method: str, about: dict[str, Any]) -> str:
    body = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    request = _schema("Request", body) if body else ""
    responses = "".join(
        f"<tr><td>{html.escape(code)}</td><td>{html.escape(response['description'])}</td></tr>"
        for code, response in about["responses"].items()
    )
    head = f"<code>{html.escape(method.upper())} {html.escape(path)}</code> {html.escape(about['summary'])}"
    return f"<h2>{head}</h2><p>{html.escape(about.get('description', ''))}</p>{request}<table>{responses}</table>"


def _schema(name: str, schema: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{html.escape(field)}</code></td><td>{html.escape(_type(property_schema))}</td>"
        f"<td>{html.escape(property_schema.get('description', ''))}</td></tr>"
        for field, property_schema in schema.get("properties", {}).items()
    )
    about = html.escape(schema.get("description", ""))
    return f"<h3>{html.escape(name)}</h3><p>{about}</p><table>{rows}</table>"


def _type(schema: dict[str, Any]) -> str:
    """Return a type in words, for instance "list of string, or null"."""
    if "anyOf" in schema:
        return ", or ".join(map(_type, schema["anyOf"]))
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    return str(schema.get("type", "any"))
