"""GPU profiles: the facts of each chip, the profile of this machine, measurements, and the figures that follow from them."""
