return "the folder"
