"""UniZero: a latent world model of tokens, with tree search and temporal priors on its attention."""
