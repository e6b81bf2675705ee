"""A database backend with a PostgreSQL schema for each tenant, as django-tenants has."""
