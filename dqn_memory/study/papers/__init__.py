"""The four papers' published tables, and what their own figures say of their claims."""
