"""Anthropic messages: ``{system, messages}``.

One message may hold several rows, and several rows may go into one message. Notes of rows (see ``formats.notes``):

- ``message``: notes on the message whose first row this is; the other fields are those of a ``tool_result`` block;
- ``split``: the row starts a message of its own, although its neighbour has the same role;
- ``inline``: a system row that came as a message of role ``system``, where newer models take it.
"""

from foldline.formats.anthropic_messages.reading import parse, parse_response
from foldline.formats.anthropic_messages.writing import render

__all__ = ["parse", "parse_response", "render"]
