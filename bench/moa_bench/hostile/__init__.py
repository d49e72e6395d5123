"""One honest client beside attackers, one kind after the other: what does it notice?"""
