"""The three frozen tables, and what the house keeps beside them: summaries, runs and their pieces."""

from alembic import op

revision = "0001"
down_revision = None

# The three tables may stand already, made by an older program with the same contract: its rows stay.
CHATS = """
CREATE TABLE IF NOT EXISTS chat_sessions (
    id TEXT NOT NULL PRIMARY KEY,
    title TEXT NOT NULL DEFAULT 'New Chat',
    user_id TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    deleted_at TEXT,
    metadata_json TEXT
);
CREATE INDEX IF NOT EXISTS ix_chat_sessions_updated ON chat_sessions (updated_at DESC, id DESC);
CREATE INDEX IF NOT EXISTS ix_chat_sessions_live ON chat_sessions (updated_at DESC, id DESC) WHERE deleted_at IS NULL;
CREATE INDEX IF NOT EXISTS ix_chat_sessions_user ON chat_sessions (user_id, updated_at DESC) WHERE user_id IS NOT NULL;

CREATE TABLE IF NOT EXISTS chat_messages (
    id TEXT NOT NULL PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES chat_sessions (id) ON DELETE CASCADE,
    role TEXT NOT NULL CHECK (role IN ('user', 'assistant', 'system')),
    content TEXT NOT NULL,
    token_count INTEGER,
    user_id TEXT,
    created_at TEXT NOT NULL,
    metadata_json TEXT
);
CREATE INDEX IF NOT EXISTS ix_chat_messages_chat ON chat_messages (session_id, created_at DESC, id DESC);

CREATE TABLE IF NOT EXISTS chat_turns (
    id TEXT NOT NULL PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES chat_sessions (id) ON DELETE CASCADE,
    payload_hash TEXT NOT NULL,
    user_message_id TEXT REFERENCES chat_messages (id) ON DELETE SET NULL,
    assistant_message_id TEXT REFERENCES chat_messages (id) ON DELETE SET NULL,
    status TEXT NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'completed', 'failed')),
    error_detail TEXT,
    created_at TEXT NOT NULL,
    completed_at TEXT
);
CREATE INDEX IF NOT EXISTS ix_chat_turns_chat ON chat_turns (session_id, created_at DESC);
"""

HOUSE = """
-- 'default': nobody named it yet; 'message': its first message did; 'person': somebody did. NULL: see Chat.named_after.
ALTER TABLE chat_sessions ADD COLUMN title_source TEXT;

-- One turn at a time per chat, by the database's own word. Turns left by an older program cannot be running any more.
UPDATE chat_messages SET metadata_json = json_set(
    CASE WHEN NOT json_valid(metadata_json) THEN '{}' WHEN json_type(metadata_json) = 'object' THEN metadata_json
    ELSE '{}' END,
    '$.error', json('{"code": "INTERRUPTED", "message": "The program stopped before the answer was complete."}'))
    WHERE id IN (SELECT user_message_id FROM chat_turns WHERE status = 'pending' AND assistant_message_id IS NULL);
UPDATE chat_turns SET status = 'failed', completed_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now'),
    error_detail = '{"code": "INTERRUPTED", "message": "The program stopped before the answer was complete."}'
    WHERE status = 'pending';
CREATE UNIQUE INDEX ux_chat_turns_running ON chat_turns (session_id) WHERE status = 'pending';
-- Deleting a message looks for the turns that name it; without these it would read the whole table.
CREATE INDEX ix_chat_turns_user_message ON chat_turns (user_message_id);
CREATE INDEX ix_chat_turns_assistant_message ON chat_turns (assistant_message_id);

-- Who is writing an answer, until when that is believed, and what is left of one that failed.
CREATE TABLE turn_runs (
    turn_id TEXT NOT NULL PRIMARY KEY REFERENCES chat_turns (id) ON DELETE CASCADE,
    worker TEXT NOT NULL,
    lease_until TEXT NOT NULL,
    stop_requested_at TEXT,
    partial TEXT
);
CREATE INDEX ix_turn_runs_worker ON turn_runs (worker);
-- The growing answer, for other processes and in case this one dies: a JSON list of pieces, numbered from seq.
CREATE TABLE turn_pieces (
    turn_id TEXT NOT NULL REFERENCES turn_runs (turn_id) ON DELETE CASCADE,
    seq INTEGER NOT NULL,
    texts TEXT NOT NULL,
    PRIMARY KEY (turn_id, seq)
) WITHOUT ROWID;

-- What the list of chats shows, so that it never reads a message. Kept by triggers: no writer can forget it.
CREATE TABLE chat_summaries (
    chat_id TEXT NOT NULL PRIMARY KEY REFERENCES chat_sessions (id) ON DELETE CASCADE,
    message_count INTEGER NOT NULL,
    preview TEXT
) WITHOUT ROWID;
"""

COUNTS = (
    "CASE WHEN json_valid({row}.metadata_json) THEN json_extract({row}.metadata_json, '$.error') IS NULL"
    " AND NOT coalesce(json_extract({row}.metadata_json, '$.isVirtual'), 0) ELSE 1 END"
)
# Enough for a preview of 50 characters, which is folded where it is shown; white space at the start would use it up.
# A blob that another program left as content has none.
BEGINNING = (
    "CASE typeof({row}.content) WHEN 'text'"
    " THEN substr(ltrim({row}.content, char(9, 10, 11, 12, 13, 32, 160, 12288)), 1, 200) END"
)
NEWEST = (
    f"(SELECT {BEGINNING.format(row='m')} FROM chat_messages m WHERE m.session_id = {{chat}} AND "
    + COUNTS.format(row="m")
    + " ORDER BY m.created_at DESC, m.id DESC LIMIT 1)"
)

TRIGGERS = [
    f"""
CREATE TRIGGER summary_after_insert AFTER INSERT ON chat_messages WHEN {COUNTS.format(row="NEW")}
BEGIN
    INSERT INTO chat_summaries (chat_id, message_count, preview)
        VALUES (NEW.session_id, 1, {BEGINNING.format(row="NEW")})
        ON CONFLICT (chat_id) DO UPDATE
        SET message_count = message_count + 1, preview = {NEWEST.format(chat="NEW.session_id")};
END""",
    f"""
CREATE TRIGGER summary_after_update AFTER UPDATE OF content, metadata_json, created_at ON chat_messages
BEGIN
    INSERT OR IGNORE INTO chat_summaries (chat_id, message_count) VALUES (NEW.session_id, 0);
    UPDATE chat_summaries
        SET message_count = message_count + ({COUNTS.format(row="NEW")}) - ({COUNTS.format(row="OLD")}),
            preview = {NEWEST.format(chat="NEW.session_id")}
        WHERE chat_id = NEW.session_id;
END""",
    f"""
CREATE TRIGGER summary_after_delete AFTER DELETE ON chat_messages WHEN {COUNTS.format(row="OLD")}
BEGIN
    UPDATE chat_summaries
        SET message_count = message_count - 1, preview = {NEWEST.format(chat="OLD.session_id")}
        WHERE chat_id = OLD.session_id;
END""",
]

FILL = f"""
INSERT INTO chat_summaries (chat_id, message_count, preview)
    SELECT c.id, (SELECT count(*) FROM chat_messages m WHERE m.session_id = c.id AND {COUNTS.format(row="m")}),
        {NEWEST.format(chat="c.id")}
    FROM chat_sessions c
"""


def upgrade() -> None:
    for statement in f"{CHATS}{HOUSE}".split(";\n"):
        if statement.strip():
            op.execute(statement)
    for statement in [*TRIGGERS, FILL]:
        op.execute(statement)
