"""Upper bounds on the rates of collectives, with proofs to check."""
