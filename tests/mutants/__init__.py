"""Mutation testing: small bugs are planted in the code, and the tests must see them."""
