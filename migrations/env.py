"""Runs the migrations on the connection that models/schema.py hands over, in its one transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
context.run_migrations()
