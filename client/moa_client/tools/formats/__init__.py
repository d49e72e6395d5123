"""How families of models write calls: one module a family."""
