"""The C interface of the engine as Python sees it, and the tables that mirror it."""
