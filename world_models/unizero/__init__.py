"""UniZero: a latent world model of tokens, planned in by tree search, with temporal priors on its attention."""
