"""Arrays of finished runs in, figures and tables out."""
