"""The doors for programs: the frozen contract under /api, in JSON."""

from routes.api.messages import messages
from routes.api.queries import queries
from routes.api.searches import searches
from routes.api.sessions import sessions
from routes.api.turns import turns

DOORS = (sessions, messages, turns, searches, queries)
