"""What the four endpoints answer 400 to, written from their documentation and the refusals their users report.

Each function lists every fault it finds as ``where: what``; an empty list is a request the endpoint takes. All are
stricter than the endpoints where those only repair silently: roles alternate, unknown fields are faults.
"""

from tests.validity.anthropic import anthropic_faults
from tests.validity.google import google_faults
from tests.validity.openai_chat import openai_chat_faults
from tests.validity.openai_responses import openai_responses_faults

__all__ = ["anthropic_faults", "google_faults", "openai_chat_faults", "openai_responses_faults"]
