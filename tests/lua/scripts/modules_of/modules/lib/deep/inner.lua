return "inner"
