"""The page as one file: template, style, scripts and data, and nothing from anywhere else."""

import base64
import hashlib
from collections.abc import Sequence
from importlib.resources import files

from fedwsq.report.page.charts import bokeh
from fedwsq.report.page.contents import contents
from fedwsq.report.page.library import library_parts
from fedwsq.runs.reading import Reading

# In JSON these can be written otherwise, and then nothing in it can end the script that holds it.
ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def render(readings: Sequence[Reading], live: bool = False) -> str:
    """The page of these runs; a `live` one asks its server for news."""
    library = library_parts(bokeh())
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    page = contents(readings)
    # All that is not marked as ours is escaped.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["script"] = lambda text: Markup(text.translate(ESCAPES))
    script = _own("page.js")
    template = environment.from_string(_own("page.html"))
    return template.render(
        page=page,
        live=live,
        policy=_policy([*library, script], live),
        css=Markup(_own("page.css")),
        library=[Markup(part) for part in library],
        script=Markup(script),
    )


def _own(name: str) -> str:
    return (files("fedwsq.report.page") / name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str], live: bool) -> str:
    """What a browser may do with the page: run these scripts and no others, and ask nobody."""
    digests = [hashlib.sha256(script.encode()).digest() for script in scripts]
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    rules = [
        "default-src 'none'",
        f"script-src {allowed}",
        "style-src 'unsafe-inline'",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    if live:
        rules.append("connect-src 'self'")
    return "; ".join(rules)
