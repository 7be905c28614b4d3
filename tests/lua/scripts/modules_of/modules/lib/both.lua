return "the file"
