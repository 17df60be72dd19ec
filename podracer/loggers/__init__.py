"""Where rows go, one file a logger; `podracer.logging.make_logger` puts them together."""
