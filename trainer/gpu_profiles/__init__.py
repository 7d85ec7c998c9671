"""GPU profiles: facts of each chip, the profile of this machine, measurements, and figures derived
from them.
"""
