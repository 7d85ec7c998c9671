"""What is known of each chip: `chips` the facts, `memory` what follows from them, `choice` which one holds here."""
