"""A page on which a person types a prompt and watches which level writes each token."""
