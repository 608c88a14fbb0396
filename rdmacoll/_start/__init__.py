"""How ranks find each other: launchers, the rendezvous, secrets, and the steps of a start."""
