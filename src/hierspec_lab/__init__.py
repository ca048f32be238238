"""The research beside the product: the papers, benches, training; it uses the product as anyone."""
