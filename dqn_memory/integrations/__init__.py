"""The memories inside other libraries' learners. Each module needs its library, and nothing else imports them."""
