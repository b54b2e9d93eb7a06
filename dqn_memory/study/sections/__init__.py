"""Write the sections of a report, each from the collected runs."""
