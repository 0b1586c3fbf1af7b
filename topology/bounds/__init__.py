"""Upper bounds on the rates of collectives, with certificates to verify."""
