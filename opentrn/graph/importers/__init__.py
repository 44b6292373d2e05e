"""How programs of other frameworks become graphs; each framework is loaded only when used."""
