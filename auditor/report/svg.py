"""A few SVG shapes as text. Lengths may be percentages, so that a drawing stretches with the page and its text does not."""

from __future__ import annotations

from html import escape

from auditor.report.words import clean


def element(name: str, *children: str, **attributes: object) -> str:
    """One element; ``children`` are markup already. Underscores in attribute names stand for hyphens, a last one is dropped."""
    parts = "".join(f' {_attribute(key)}="{escape(clean(value))}"' for key, value in attributes.items())
    return f"<{name}{parts}>{''.join(children)}</{name}>"


def _attribute(key: str) -> str:
    return key if key == "viewBox" else key.rstrip("_").replace("_", "-")


def text(words: object) -> str:
    return escape(clean(words))


def title(words: object) -> str:
    """A shape's tooltip."""
    return element("title", text(words))


def rect(x: str, y: str, width: str, height: str, class_: str, tooltip: str = "") -> str:
    inner = (title(tooltip),) if tooltip else ()
    return element("rect", *inner, x=x, y=y, width=width, height=height, class_=class_)


def label(words: object, x: str, y: str, class_: str, anchor: str = "middle") -> str:
    return element("text", text(words), x=x, y=y, class_=class_, text_anchor=anchor)


def line(x1: str, y1: str, x2: str, y2: str, class_: str) -> str:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def drawing(height: int, says: str, *children: str) -> str:
    """A drawing as wide as its place and ``height`` CSS pixels high; ``says`` is read aloud in its stead."""
    return element("svg", *children, width="100%", height=height, role="img", aria_label=says)


def pct(share: float) -> str:
    """A share of one as an SVG length."""
    return f"{max(0.0, min(1.0, share)) * 100:.3f}".rstrip("0").rstrip(".") + "%"
