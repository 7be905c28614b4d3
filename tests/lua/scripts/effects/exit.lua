os.exit(1)  -- expect error: os.exit would end the process
