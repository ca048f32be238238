"""Systems of other papers, by the names of presets."""
