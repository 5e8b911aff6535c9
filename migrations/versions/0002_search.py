"""What search finds: an entry for every title and message that can be found, and the index over them."""

import re

from alembic import op

revision = "0002"
down_revision = "0001"

# An entry is the place of one text in the order of finding, newest last. A changed text gets a new one: ids are never
# used twice, so what the index still says of an old id is without effect. `message_id` is NULL for a chat's title.
TABLES = """
CREATE TABLE search_entries (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    chat_id TEXT NOT NULL,
    message_id TEXT,
    pending INTEGER NOT NULL DEFAULT 1
);
CREATE INDEX ix_search_entries_chat ON search_entries (chat_id);
CREATE INDEX ix_search_entries_message ON search_entries (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX ix_search_entries_pending ON search_entries (id) WHERE pending = 1;

CREATE VIRTUAL TABLE search_index USING fts5 (
    grams, content = '', columnsize = 0, detail = none, tokenize = 'ascii'
);
-- Merging is done by models/search.py in steps of its own: inside a write it would hold the database for too long.
INSERT INTO search_index (search_index, rank) VALUES ('automerge', 0);
INSERT INTO search_index (search_index, rank) VALUES ('crisismerge', 64);
"""

# A failed message is kept for the record and found by nobody. The statements below say FAILED(row) for this.
FAILED = r"CASE WHEN json_valid(\1.metadata_json) THEN json_extract(\1.metadata_json, '$.error') IS NOT NULL ELSE 0 END"

# Triggers, so that no writer can forget the index, whichever program it is. REPLACE deletes without a delete trigger:
# therefore an insert looks for an entry too.
TRIGGERS = [
    """
CREATE TRIGGER search_message_insert AFTER INSERT ON chat_messages
BEGIN
    DELETE FROM search_entries WHERE message_id = NEW.id;
    INSERT INTO search_entries (chat_id, message_id) SELECT NEW.session_id, NEW.id WHERE NOT FAILED(NEW);
END""",
    """
CREATE TRIGGER search_message_update AFTER UPDATE OF id, session_id, content, metadata_json ON chat_messages
WHEN OLD.content IS NOT NEW.content OR OLD.id <> NEW.id OR OLD.session_id <> NEW.session_id
    OR FAILED(OLD) <> FAILED(NEW)
BEGIN
    DELETE FROM search_entries WHERE message_id = OLD.id;
    INSERT INTO search_entries (chat_id, message_id) SELECT NEW.session_id, NEW.id WHERE NOT FAILED(NEW);
END""",
    """
CREATE TRIGGER search_message_delete AFTER DELETE ON chat_messages
BEGIN
    DELETE FROM search_entries WHERE message_id = OLD.id;
END""",
    """
CREATE TRIGGER search_chat_insert AFTER INSERT ON chat_sessions
BEGIN
    DELETE FROM search_entries WHERE chat_id = NEW.id AND message_id IS NULL;
    INSERT INTO search_entries (chat_id) VALUES (NEW.id);
END""",
    """
CREATE TRIGGER search_chat_update AFTER UPDATE OF id, title ON chat_sessions
WHEN OLD.title IS NOT NEW.title OR OLD.id <> NEW.id
BEGIN
    DELETE FROM search_entries WHERE chat_id = OLD.id AND message_id IS NULL;
    INSERT INTO search_entries (chat_id) VALUES (NEW.id);
END""",
    """
CREATE TRIGGER search_chat_delete AFTER DELETE ON chat_sessions
BEGIN
    DELETE FROM search_entries WHERE chat_id = OLD.id;
END""",
]

FILL = """
INSERT INTO search_entries (chat_id, message_id)
    SELECT chat_id, message_id FROM (
        SELECT id AS chat_id, NULL AS message_id, updated_at AS moment FROM chat_sessions
        UNION ALL
        SELECT m.session_id, m.id, m.created_at FROM chat_messages m WHERE NOT FAILED(m)
    ) ORDER BY moment
"""


def upgrade() -> None:
    for statement in TABLES.split(";\n"):
        if statement.strip():
            op.execute(statement)
    for statement in [*TRIGGERS, FILL]:
        op.execute(re.sub(r"FAILED\((\w+)\)", FAILED, statement))
