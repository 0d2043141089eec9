"""OpenAI Responses: ``{instructions, input}``, where ``input`` is an array of items or a string.

One answer is several items and one row: consecutive items of the assistant's side are its blocks, in order. Notes
(see ``formats.notes``):

- of a block, ``item``: it starts a message item, with what that item's head and content shape differ in;
- of a block, ``as``: the item or content part that it came as;
- of a row, ``instructions``: a system row that came as the request's instructions; ``bare``: the input was this row's
  string alone; ``as``: a result's item, or ``item`` for an item kept whole.
"""

from foldline.formats.openai_responses.reading import parse, parse_response
from foldline.formats.openai_responses.writing import render

__all__ = ["parse", "parse_response", "render"]
