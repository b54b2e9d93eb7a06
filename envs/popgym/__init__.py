"""POPGym's tasks as tensor environments: `POPGym/<family>-<Easy, Medium or Hard>-v0`, by the rules of popgym 1.0.7."""
