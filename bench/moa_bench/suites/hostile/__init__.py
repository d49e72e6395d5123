"""What one honest client notices of attackers, one kind of attack after the other."""
