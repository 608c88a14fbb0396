"""How a numpy call becomes an operation of the engine, and its result an array."""
