"""POPGym's sixteen families (Morad et al. 2023) as tensor environments."""
