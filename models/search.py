"""placeholder until search lands"""
def search(q, limit, cursor): return {"sessions": [], "next_cursor": None, "has_more": False}
def index_pending(limit=1): return 0
def pending_count(): return 0
def rebuild(): pass
