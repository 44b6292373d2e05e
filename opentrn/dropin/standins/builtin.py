"""`nki.builtin`: names that a kernel language could add to Python's builtins; NKI adds none."""
