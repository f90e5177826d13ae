"""Remember what was exported, what was decided, and what came of it, in a database.

``_store.py`` has the tables, in SQLite or in Postgres.
"""
