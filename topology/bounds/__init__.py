"""How fast a collective can be at best, and proofs that anyone can check."""
