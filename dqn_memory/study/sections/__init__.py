"""Make the sections of a report from the collected runs."""
