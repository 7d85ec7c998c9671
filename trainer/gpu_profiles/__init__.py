"""GPU profiles: the facts of each chip, the profile that holds here, measurements, and the figures that follow from them."""
