"""Google generateContent: ``{systemInstruction, contents}``.

One content may hold several rows, and several rows may go into one content. Notes (see ``formats.notes``):

- of any part, ``snake``: it came with fields in snake_case, and goes out with them;
- of a call, ``id``: whether it came with an id; calls without one are numbered by name, and so are their responses;
- of a result, ``key``: the field of the response that held its text, empty where the response is a value of its own;
- of a row, ``message``: notes on the content whose first row this is; ``split``: the row starts a content of its own,
  although its neighbour has the same role; ``name``: how ``systemInstruction`` was spelled.
"""

from foldline.formats.google_genai.reading import parse, parse_response
from foldline.formats.google_genai.writing import render

__all__ = ["parse", "parse_response", "render"]
